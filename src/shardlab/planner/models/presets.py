"""Presets: public models by name, each a table whose total is the published parameter count.

>>> load_preset("llama3-8b").n_parameters
8030261248
>>> load_preset("meta-llama/Llama-3.1-70B-Instruct").name
'llama3-70b'
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import cache
from importlib.resources import files

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownModel
from shardlab.planner.model import Model
from shardlab.planner.models.table import model_from_table

_FOLDER = files("shardlab.planner").joinpath("presets")
_MAX_SUGGESTIONS = 3
_MAX_NAME = 200  # characters that are compared
_SEPARATOR = re.compile(r"[-_ ]+")


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(sorted(file.name.removesuffix(".toml") for file in _FOLDER.iterdir()))


def load_preset(name: str) -> Model:
    """Return the preset of that name; case and separators do not matter."""
    model = find_preset(name)
    if model is None:
        raise unknown_model(name)
    return model


def find_preset(name: str) -> Model | None:
    """Return the preset of that name or alias; None if there is none."""
    normalized = _normalize_name(name[:_MAX_NAME])
    by_normalized = {_normalize_name(preset): preset for preset in preset_names()}
    if normalized in by_normalized:
        return _load_preset_file(by_normalized[normalized])
    preset = _preset_aliases().get(normalized)
    if preset is None:
        return None
    model = _load_preset_file(preset)
    return replace(model, source=f"{model.source}; {name!r} has the same shapes")


def unknown_model(name: str) -> UnknownModel:
    """Return the error for an unknown name, with the nearest presets."""
    names = preset_names()
    suggestions = _nearest_presets(name)
    if suggestions:
        hint = f"Did you mean {' or '.join(map(repr, suggestions))}?"
    else:
        hint = "give the path of a file or folder."
    return UnknownModel(
        f"Unknown model {name!r:.80}: there is no such preset and no such file.",
        fix=f"{hint} `shardlab plan --list` shows all {len(names)} presets.",
    )


def _nearest_presets(name: str) -> list[str]:
    candidates = list(preset_names())
    suggestions: list[str] = []
    while len(suggestions) < _MAX_SUGGESTIONS:
        nearest = nearest_name(name[:_MAX_NAME], candidates, cutoff=0.6)
        if nearest is None:
            break
        candidates.remove(nearest)
        suggestions.append(nearest)
    return suggestions


@cache
def _load_preset_file(name: str) -> Model:
    text = _FOLDER.joinpath(f"{name}.toml").read_text("utf-8")
    return model_from_table(tomllib.loads(text), f"preset {name}, shapes as in its checkpoint")


@cache
def _preset_aliases() -> dict[str, str]:
    """Return the presets by their aliases, the key `also` of each file."""
    aliases = {}
    for preset in preset_names():
        text = _FOLDER.joinpath(f"{preset}.toml").read_text("utf-8")
        # Parse only the part before the first table: the tensors are the long part.
        header = text.partition("\n[")[0]
        for alias in tomllib.loads(header).get("also", ()):
            aliases[_normalize_name(alias)] = preset
            aliases[_normalize_name(alias.rpartition("/")[2])] = preset
    return aliases


def _normalize_name(name: str) -> str:
    """Return a name without the differences in spelling: case and separators."""
    return _SEPARATOR.sub("", name.strip().lower())
