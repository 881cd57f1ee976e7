"""A model as a table in TOML or JSON: presets are such files, and a person may write their own.

name = "tiny"
[architecture]             # optional: activations and caches need it
layers = 2
[tensors]
"layers.{0..1}.up.weight" = "bf16[64,16]"
"embed.weight" = { array = "bf16[100,16]", axes = ["vocab", "embed"] }
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from typing import Any

from shardlab.layouts.shape import parse_array
from shardlab.layouts.spec import parse_spec
from shardlab.plans.family import Family, parse_family
from shardlab.plans.model import Architecture, Model


def parse_table(text: str, where: str) -> Model:
    """Return the model that a TOML text describes."""
    return model_of_table(tomllib.loads(text), where)


def model_of_table(data: Mapping[str, Any], where: str) -> Model:
    """Return the model of a table, each mistake with its place."""
    architecture = data.get("architecture")
    return Model(
        data["name"],
        tuple(_family(path, entry) for path, entry in data["tensors"].items()),
        where,
        None if architecture is None else Architecture(**architecture),
        data.get("published"),
        (data["note"],) if "note" in data else (),
        {key: value for key, value in data.items() if key.endswith("_source")},
    )


def _family(path: str, entry: Any) -> Family:
    if isinstance(entry, str):
        return parse_family(path, *parse_array(entry))
    shape, dtype = parse_array(entry["array"])
    axes = tuple(entry["axes"]) if "axes" in entry else None
    spec = parse_spec(entry["spec"]) if "spec" in entry else None
    return parse_family(path, shape, dtype, axes, spec)
