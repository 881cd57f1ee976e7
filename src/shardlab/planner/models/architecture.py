"""Architectures that users give to a model whose source has none: a pytree, NNX, a checkpoint.

>>> parse_architecture("llama3-8b").layers
32
>>> parse_architecture({"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head_dim": 16,
...     "ffn": 256, "vocab": 1000}).gated
True

An architecture is compared with the tensors as far as their names tell what dimensions are for:

>>> from dataclasses import replace
>>> from shardlab.planner.models.presets import load_preset
>>> llama = load_preset("llama3-8b")
>>> find_contradictions(llama.groups, llama.architecture)
()
>>> find_contradictions(llama.groups, replace(llama.architecture, layers=99, hidden=64))
('layers 99, and the tensors have 32', 'hidden 64, and the tensors have 4096')
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

from shardlab._files.bounded_read import file_not_found_error, read_bounded_text
from shardlab._files.json_reader import reject_duplicate_keys
from shardlab._files.schema import check_fields
from shardlab._files.toml_reader import parse_toml
from shardlab.errors import InvalidModel, short_repr
from shardlab.planner.memory.dtype_policy import is_float
from shardlab.planner.memory.fp8_scales import is_scale
from shardlab.planner.model import Architecture, Model
from shardlab.planner.models.hf_config import parse_config
from shardlab.planner.models.presets import find_preset
from shardlab.planner.models.table import ARCHITECTURE
from shardlab.planner.strategies.dim_meaning import LAYER_WORDS, dim_meanings_of
from shardlab.planner.tensor_group import TensorGroup

_MAX_BYTES = 16_000_000
_SOURCES = (
    "use a mapping such as {'layers': 32, 'hidden': 4096, ...}, a preset's name, a .toml file with "
    "a table [architecture], or a model's config.json."
)
_LAYER = re.compile(rf"(?:^|[./_])(?:{'|'.join(sorted(LAYER_WORDS))})[./_](?:([0-9]+)[./_]|$)")
# Layers besides those of the decoder, such as DeepSeek's, which predict further tokens.
_MAX_EXTRA_LAYERS = 4
# Embeddings are padded to multiples of 128 and more, so their rows differ from the vocabulary.
_VOCAB_PADDING = 1.1


def with_architecture(model: Model, architecture: Any) -> Model:
    """Return the model with the given architecture instead of its own."""
    if architecture is None:
        return model
    parsed = parse_architecture(architecture)
    source = f" of {architecture}" if isinstance(architecture, (str, PathLike)) else ""
    note = f"Activations and caches are estimated from the given architecture{source:.200}."
    if differences := find_contradictions(model.groups, parsed):
        note += f" It does not agree with the tensors: {'; '.join(differences):.300}."
    return replace(model, architecture=parsed, notes=(*model.notes, note))


def parse_architecture(source: Any) -> Architecture:
    """Return the architecture given as a mapping, a file, or the name of a preset."""
    if isinstance(source, Architecture):
        return source
    if isinstance(source, Mapping):
        return _parse_fields(source, "architecture")
    if not (isinstance(source, (str, PathLike)) and isinstance(fspath(source), str)):
        raise InvalidModel(f"{short_repr(source, 200)} is not an architecture.", fix=_SOURCES)
    text = fspath(source)
    # As for models: a preset takes precedence over a file of the same name.
    if (preset := find_preset(text)) is not None and preset.architecture is not None:
        return preset.architecture
    file = Path(expanduser(text))
    if not text or not exists(file):
        if text.lower().endswith((".toml", ".json")):
            raise file_not_found_error(file)
        raise InvalidModel(
            f"Unknown architecture {short_repr(text, 200)}: there is no such preset and no such "
            "file.",
            fix=_SOURCES,
        )
    return _load_architecture(file)


def _load_architecture(file: Path) -> Architecture:
    is_json = file.name.lower().endswith(".json")
    text = read_bounded_text(file, _MAX_BYTES)
    try:
        data = (
            json.loads(text, object_pairs_hook=reject_duplicate_keys)
            if is_json
            else parse_toml(text)
        )
    except (ValueError, RecursionError) as error:
        raise InvalidModel(
            f"{file.name!r} is not valid {'JSON' if is_json else 'TOML'}: {error!s:.200}",
            where=str(file),
            fix=_SOURCES,
        ) from None
    if is_json and isinstance(data, dict) and ("model_type" in data or "text_config" in data):
        return parse_config(data)
    fields = data.get("architecture", data) if isinstance(data, dict) else data
    return _parse_fields(fields, str(file))


def _parse_fields(data: Any, where: str) -> Architecture:
    return Architecture(**check_fields(data, ARCHITECTURE, where, InvalidModel))


def find_contradictions(
    groups: Iterable[TensorGroup], architecture: Architecture
) -> tuple[str, ...]:
    """Return the fields of an architecture that contradict the sizes of the tensors, as text."""
    return tuple(_iterate_contradictions(tuple(groups), architecture))


def _iterate_contradictions(
    groups: tuple[TensorGroup, ...], architecture: Architecture
) -> Iterator[str]:
    n_layers, layers = set(count_layers(groups).values()), architecture.layers
    if n_layers and not any(layers <= n <= layers + _MAX_EXTRA_LAYERS for n in n_layers):
        yield _difference_text("layers", layers, n_layers)
    sizes = _sizes_by_meaning(groups)
    expected = {
        "embed": ("hidden", architecture.hidden),
        "heads": ("heads × head_dim", architecture.heads * architecture.head_dim),
        "kv_heads": ("kv_heads × head_dim", architecture.kv_heads * architecture.head_dim),
    }
    for meaning, (field, size) in expected.items():
        if meaning in sizes and size not in sizes[meaning]:
            yield _difference_text(field, size, sizes[meaning])
    vocab, rows = architecture.vocab, sizes.get("vocab", set())
    if rows and not any(1 / _VOCAB_PADDING <= size / vocab <= _VOCAB_PADDING for size in rows):
        yield _difference_text("vocab", vocab, rows)


def count_layers(groups: Iterable[TensorGroup]) -> Mapping[str, int]:
    """Return the number of layers, by the path before the layer's number."""
    numbers_by_prefix: dict[str, set[str]] = {}
    n_stacked: dict[str, int] = {}
    for group in groups:
        prefix = ""
        for position, text in enumerate(group.path_parts):
            for layer in _LAYER.finditer(text):
                numbers = numbers_by_prefix.setdefault(prefix + text[: layer.start()], set())
                if layer[1]:
                    numbers.add(layer[1])
                elif position < len(group.path_parts) - 1:
                    numbers |= _numbers_at(group, position)
            prefix += f"{text}*"
        meanings = dim_meanings_of(group) or ()
        if "layers" in meanings:
            n_stacked[f"{group.name} stacked"] = group.shape[meanings.index("layers")]
    n_numbered = {prefix: len(numbers) for prefix, numbers in numbers_by_prefix.items() if numbers}
    return {**n_numbered, **n_stacked}


def _numbers_at(group: TensorGroup, position: int) -> set[str]:
    if group.listed_numbers is not None:
        return {numbers[position] for numbers in group.listed_numbers}
    return set(map(str, group.ranges[position]))


def _sizes_by_meaning(groups: Iterable[TensorGroup]) -> dict[str, set[int]]:
    """Return the sizes of dimensions by their meaning."""
    sizes: dict[str, set[int]] = {}
    for group in groups:
        # Packed 4-bit weights (stored as integers) and scales have other sizes than the weight.
        is_packed = not is_float(group.dtype) or is_scale(group)
        if not is_packed and (meanings := dim_meanings_of(group)) is not None:
            for meaning, size in zip(meanings, group.shape, strict=True):
                sizes.setdefault(meaning or "", set()).add(size)
    return sizes


def _difference_text(field: str, value: int, sizes: Iterable[int]) -> str:
    ordered = sorted(sizes)
    rest = ", …" if len(ordered) > 3 else ""
    return f"{field} {value}, and the tensors have {' or '.join(map(str, ordered[:3]))}{rest}"
