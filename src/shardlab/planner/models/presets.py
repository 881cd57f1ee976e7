"""Models by name, each a table beside this file whose total is the published one.

>>> load_preset("llama3-8b").n_parameters
8030261248
>>> load_preset("meta-llama/Llama-3.1-70B-Instruct").name
'llama3-70b'
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files

from shardlab.errors import UnknownModel
from shardlab.planner.model import Model
from shardlab.planner.models.table import model_from_table

_FOLDER = files("shardlab.planner").joinpath("presets")
_NEAR = 3  # names that an unknown one is answered with
_SEPARATOR = re.compile(r"[-_ ]+")


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names that there are, in order."""
    return tuple(sorted(each.name.removesuffix(".toml") for each in _FOLDER.iterdir()))


def load_preset(name: str) -> Model:
    """Return the model of that name, however it is written."""
    found = find_preset(name)
    if found is None:
        raise unknown_model(name)
    return found


def find_preset(name: str) -> Model | None:
    """Return the model of that name, or of another name of it; None where there is none."""
    plain = _plain(name[:200])
    own = {_plain(each): each for each in preset_names()}
    if plain in own:
        return _preset(own[plain])
    other = _other_names().get(plain)
    if other is None:
        return None
    model = _preset(other)
    return replace(model, source=f"{model.source}; {name!r} has the same shapes")


def unknown_model(name: str) -> UnknownModel:
    """Return the error about a name that nobody knows, with the nearest ones."""
    names = preset_names()
    near = get_close_matches(name[:200].lower(), names, _NEAR, cutoff=0.6)
    nearest = f"{' or '.join(map(repr, near))}; " if near else "the path of a file or folder; "
    return UnknownModel(
        f"There is no model {name!r:.80}, neither a preset nor a file.",
        fix=f"{nearest}`shardlab plan --list` shows all {len(names)} presets.",
    )


@cache
def _preset(name: str) -> Model:
    text = _FOLDER.joinpath(f"{name}.toml").read_text("utf-8")
    return model_from_table(tomllib.loads(text), f"preset {name}, shapes as in its checkpoint")


@cache
def _other_names() -> dict[str, str]:
    """Return the presets by their other names; read from the files, only when one is asked for."""
    found = {}
    for name in preset_names():
        head = _FOLDER.joinpath(f"{name}.toml").read_text("utf-8").partition("\n[")[0]
        for other in tomllib.loads(head).get("also", ()):
            found[_plain(other)] = name
            found[_plain(other.rpartition("/")[2])] = name
    return found


def _plain(name: str) -> str:
    """Return a name without what people write differently: case and separators."""
    return _SEPARATOR.sub("", name.strip().lower())
