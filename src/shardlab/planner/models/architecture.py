"""Measures that a person gives to a model whose source has none: a pytree, NNX, a checkpoint.

>>> parse_architecture("llama3-8b").layers
32
>>> parse_architecture({"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16,
...     "ffn": 256, "vocab": 1000}).gated
True

Whether the measures that are told of a model agree with its tensors.

>>> from shardlab.planner.models.presets import load_preset
>>> from dataclasses import replace
>>> llama = load_preset("llama3-8b")
>>> find_contradictions(llama.groups, llama.architecture)
()
>>> find_contradictions(llama.groups, replace(llama.architecture, layers=99, hidden=64))
('layers 99, and the tensors have 32', 'hidden 64, and the tensors have 4096')

Only what the names of tensors tell is compared; a model whose names nobody knows has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from os import PathLike, fspath
from os.path import exists, expanduser
from pathlib import Path
from typing import Any

from shardlab._files.bounded_read import file_not_found, read_bounded_text
from shardlab._files.json_reader import reject_duplicate_keys
from shardlab._files.schema import check_fields
from shardlab._files.toml_reader import parse_toml
from shardlab.errors import InvalidModel, short_repr
from shardlab.planner.tensor_group import TensorGroup
from shardlab.planner.memory.dtype_policy import is_float
from shardlab.planner.memory.fp8_scales import is_scale
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.hf_config import parse_config
from shardlab.planner.models.presets import find_preset
from shardlab.planner.models.table import ARCHITECTURE
from shardlab.planner.strategies.dim_meaning import LAYER_WORDS, dim_meanings_of

_LAYER = re.compile(rf"(?:^|[./_])(?:{'|'.join(sorted(LAYER_WORDS))})[./_](?:([0-9]+)[./_]|$)")
_MORE_LAYERS = 4  # beyond those of the decoder: such as predict further tokens
_PADDED = 1.1  # rows of an embedding to the words of the vocabulary, and the other way


def find_contradictions(groups: Iterable[TensorGroup], told: Architecture) -> tuple[str, ...]:
    """Return where tensors have other sizes than is told, in words."""
    known = tuple(groups)
    return tuple(_contradictions(known, told))


def _contradictions(groups: tuple[TensorGroup, ...], told: Architecture) -> Iterator[str]:
    layers = set(count_layers(groups).values())
    if layers and not any(told.layers <= n <= told.layers + _MORE_LAYERS for n in layers):
        yield _words("layers", told.layers, layers)
    found = _sizes(groups)
    wanted = {
        "embed": ("hidden", told.hidden),
        "heads": ("heads × head_dim", told.heads * told.head_dim),
        "kv_heads": ("kv_heads × head_dim", told.kv_heads * told.head_dim),
    }
    for axis, (name, size) in wanted.items():
        if axis in found and size not in found[axis]:
            yield _words(name, size, found[axis])
    vocab = found.get("vocab", ())
    if vocab and not any(1 / _PADDED <= size / told.vocab <= _PADDED for size in vocab):
        yield _words("vocab", told.vocab, vocab)


def count_layers(groups: Iterable[TensorGroup]) -> Mapping[str, int]:
    """Return how many layers there are, by the path before their number."""
    found: dict[str, set[str]] = {}
    stacked: dict[str, int] = {}
    for group in groups:
        before = ""
        for at, piece in enumerate(group.path_parts):
            for layer in _LAYER.finditer(piece):
                numbers = found.setdefault(before + piece[: layer.start()], set())
                if layer[1]:
                    numbers.add(layer[1])
                elif at < len(group.path_parts) - 1:
                    numbers |= _numbers(group, at)
            before += f"{piece}*"
        axes = dim_meanings_of(group) or ()
        if "layers" in axes:
            stacked[f"{group.name} stacked"] = group.shape[axes.index("layers")]
    return {**{name: len(each) for name, each in found.items() if each}, **stacked}


def _numbers(group: TensorGroup, at: int) -> set[str]:
    if group.listed_numbers is not None:
        return {numbers[at] for numbers in group.listed_numbers}
    return set(map(str, group.ranges[at]))


def _sizes(groups: Iterable[TensorGroup]) -> dict[str, set[int]]:
    """Return the sizes of array axes by their meaning; packed weights and scales have others."""
    found: dict[str, set[int]] = {}
    for group in groups:
        is_packed = not is_float(group.dtype) or is_scale(group)
        if not is_packed and (axes := dim_meanings_of(group)) is not None:
            for name, size in zip(axes, group.shape, strict=True):
                found.setdefault(name or "", set()).add(size)
    return found


def _words(name: str, told: int, found: Iterable[int]) -> str:
    sizes = sorted(found)
    more = ", …" if len(sizes) > 3 else ""
    return f"{name} {told}, and the tensors have {' or '.join(map(str, sizes[:3]))}{more}"


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
    if other := find_contradictions(model.groups, parsed):
        note += f" They are not those of the tensors: {'; '.join(other):.300}."
    return replace(model, architecture=parsed, notes=(*model.notes, note))


def parse_architecture(given: Any) -> Architecture:
    """Return the measures that are meant: a mapping, a file, or those of a preset."""
    if isinstance(given, Architecture):
        return given
    if isinstance(given, Mapping):
        return _checked(given, "architecture")
    if not (isinstance(given, (str, PathLike)) and isinstance(fspath(given), str)):
        raise InvalidModel(f"{short_repr(given, 200)} is not an architecture.", fix=_WANTED)
    text = fspath(given)
    if (preset := find_preset(text)) is not None and preset.architecture is not None:
        return preset.architecture
    file = Path(expanduser(text))
    if not text or not exists(file):
        if text.lower().endswith((".toml", ".json")):
            raise file_not_found(file)
        what = (
            f"There is no preset and no file {short_repr(text, 200)} to take an architecture from."
        )
        raise InvalidModel(what, fix=_WANTED)
    return _of_file(file)


def _of_file(file: Path) -> Architecture:
    is_json = file.name.lower().endswith(".json")
    text = read_bounded_text(file, _MAX_BYTES)
    try:
        data = (
            json.loads(text, object_pairs_hook=reject_duplicate_keys)
            if is_json
            else parse_toml(text)
        )
    except (ValueError, RecursionError) as error:
        kind = "JSON" if is_json else "TOML"
        what = f"{file.name!r} is not {kind}: {error!s:.200}"
        raise InvalidModel(what, where=str(file), fix=_WANTED) from None
    if is_json and isinstance(data, dict) and ("model_type" in data or "text_config" in data):
        return parse_config(data)
    inner = data.get("architecture", data) if isinstance(data, dict) else data
    return _checked(inner, str(file))


def _checked(data: Any, where: str) -> Architecture:
    return Architecture(**check_fields(data, ARCHITECTURE, where, InvalidModel))
