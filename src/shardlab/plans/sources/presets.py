"""Models by name, each a table beside this file whose total is the published count.

>>> load_preset("llama3-8b").n_parameters
8030261248
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from shardlab.errors import UnknownModel
from shardlab.layouts.cuts import nearest_name
from shardlab.plans.model import Model
from shardlab.plans.sources.table import parse_table


@cache
def preset_names() -> tuple[str, ...]:
    """Return the names that there are, in order."""
    folder = files("shardlab.plans").joinpath("presets")
    return tuple(sorted(each.name.removesuffix(".toml") for each in folder.iterdir()))


@cache
def load_preset(name: str) -> Model:
    """Return the model of that name."""
    if name not in preset_names():
        near = nearest_name(name, preset_names())
        raise UnknownModel(
            f"There is no model {name!r:.80}; there is {', '.join(preset_names())}.",
            fix=f"{near!r}, the nearest name." if near else "one of these, or a file.",
        )
    file = files("shardlab.plans").joinpath("presets", f"{name}.toml")
    return parse_table(file.read_text("utf-8"), f"preset {name}, shapes as in its checkpoint")
