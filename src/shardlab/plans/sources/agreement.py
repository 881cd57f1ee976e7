"""Whether the measures that are told of a model agree with its tensors.

>>> from shardlab.plans.sources.presets import load_preset
>>> from dataclasses import replace
>>> llama = load_preset("llama3-8b")
>>> contradictions(llama.families, llama.architecture)
()
>>> contradictions(llama.families, replace(llama.architecture, layers=99, hidden=64))
('layers 99, and the tensors have 32', 'hidden 64, and the tensors have 4096')

Only what the names of tensors tell is compared; a model whose names nobody knows has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from shardlab.plans.family import Family
from shardlab.plans.memory.policy import is_float
from shardlab.plans.memory.scales import is_scale
from shardlab.plans.model import Architecture
from shardlab.plans.strategies.meaning import LAYERS, axes_of

_LAYER = re.compile(rf"(?:^|[./_])(?:{'|'.join(sorted(LAYERS))})[./_](?:([0-9]+)[./_]|$)")
_MORE_LAYERS = 4  # beyond those of the decoder: such as predict further tokens
_PADDED = 1.1  # rows of an embedding to the words of the vocabulary, and the other way


def contradictions(families: Iterable[Family], told: Architecture) -> tuple[str, ...]:
    """Return where tensors have other sizes than is told, in words."""
    known = tuple(families)
    return tuple(_contradictions(known, told))


def _contradictions(families: tuple[Family, ...], told: Architecture) -> Iterator[str]:
    layers = set(n_layers(families).values())
    if layers and not any(told.layers <= n <= told.layers + _MORE_LAYERS for n in layers):
        yield _words("layers", told.layers, layers)
    found = _sizes(families)
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


def n_layers(families: Iterable[Family]) -> Mapping[str, int]:
    """Return how many layers there are, by the path before their number."""
    found: dict[str, set[str]] = {}
    stacked: dict[str, int] = {}
    for family in families:
        before = ""
        for at, piece in enumerate(family.pieces):
            for layer in _LAYER.finditer(piece):
                numbers = found.setdefault(before + piece[: layer.start()], set())
                if layer[1]:
                    numbers.add(layer[1])
                elif at < len(family.pieces) - 1:
                    numbers |= _numbers(family, at)
            before += f"{piece}*"
        axes = axes_of(family) or ()
        if "layers" in axes:
            stacked[f"{family.name} stacked"] = family.shape[axes.index("layers")]
    return {**{name: len(each) for name, each in found.items() if each}, **stacked}


def _numbers(family: Family, at: int) -> set[str]:
    if family.listed is not None:
        return {numbers[at] for numbers in family.listed}
    return set(map(str, family.ranges[at]))


def _sizes(families: Iterable[Family]) -> dict[str, set[int]]:
    """Return the sizes of array axes by their meaning; packed weights and scales have others."""
    found: dict[str, set[int]] = {}
    for family in families:
        is_packed = not is_float(family.dtype) or is_scale(family)
        if not is_packed and (axes := axes_of(family)) is not None:
            for name, size in zip(axes, family.shape, strict=True):
                found.setdefault(name or "", set()).add(size)
    return found


def _words(name: str, told: int, found: Iterable[int]) -> str:
    sizes = sorted(found)
    more = ", …" if len(sizes) > 3 else ""
    return f"{name} {told}, and the tensors have {' or '.join(map(str, sizes[:3]))}{more}"
