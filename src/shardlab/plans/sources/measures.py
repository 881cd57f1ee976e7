"""Measures that a person gives to a model whose source has none: a pytree, NNX, a checkpoint.

>>> parse_architecture("llama3-8b").layers
32
>>> parse_architecture({"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16,
...     "ffn": 256, "vocab": 1000}).gated
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike, fspath
from os.path import exists, expanduser
from pathlib import Path
from typing import Any

from shardlab.errors import BadModel
from shardlab.errors.brief import brief
from shardlab.plans.model import Architecture, Model
from shardlab.plans.settings import check_table
from shardlab.plans.sources.agreement import contradictions
from shardlab.plans.sources.disk import no_such_file, read_text
from shardlab.plans.sources.hf_config import parse_config
from shardlab.plans.sources.json_text import unique
from shardlab.plans.sources.presets import find_preset
from shardlab.plans.sources.table import ARCHITECTURE
from shardlab.records.toml_text import read_toml

_MAX_BYTES = 16_000_000
_WANTED = (
    "a mapping such as {'layers': 32, 'hidden': 4096, ...}, a preset's name, a .toml file with a "
    "table [architecture], or a model's config.json."
)


def with_architecture(model: Model, given: Any) -> Model:
    """Return the model with the measures that were given, in place of its own."""
    if given is None:
        return model
    parsed = parse_architecture(given)
    whose = f" of {given}" if isinstance(given, (str, PathLike)) else ""
    note = f"The measures{whose:.200} were given; activations and caches are told from them."
    if other := contradictions(model.families, parsed):
        note += f" They are not those of the tensors: {'; '.join(other):.300}."
    return replace(model, architecture=parsed, notes=(*model.notes, note))


def parse_architecture(given: Any) -> Architecture:
    """Return the measures that are meant: a mapping, a file, or those of a preset."""
    if isinstance(given, Architecture):
        return given
    if isinstance(given, Mapping):
        return _checked(given, "architecture")
    if not (isinstance(given, (str, PathLike)) and isinstance(fspath(given), str)):
        raise BadModel(f"{brief(given, 200)} is not an architecture.", fix=_WANTED)
    text = fspath(given)
    if (preset := find_preset(text)) is not None and preset.architecture is not None:
        return preset.architecture
    file = Path(expanduser(text))
    if not text or not exists(file):
        if text.lower().endswith((".toml", ".json")):
            raise no_such_file(file)
        what = f"There is no preset and no file {brief(text, 200)} to take an architecture from."
        raise BadModel(what, fix=_WANTED)
    return _of_file(file)


def _of_file(file: Path) -> Architecture:
    is_json = file.name.lower().endswith(".json")
    text = read_text(file, _MAX_BYTES)
    try:
        data = json.loads(text, object_pairs_hook=unique) if is_json else read_toml(text)
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        what = f"{file.name!r} is not {kind}: {error!s:.200}"
        raise BadModel(what, where=str(file), fix=_WANTED) from None
    if is_json and isinstance(data, dict) and ("model_type" in data or "text_config" in data):
        return parse_config(data)
    inner = data.get("architecture", data) if isinstance(data, dict) else data
    return _checked(inner, str(file))


def _checked(data: Any, where: str) -> Architecture:
    return Architecture(**check_table(data, ARCHITECTURE, where, BadModel))
