"""Stacking: many tensors alike as one array, with their number as its first array axis.

>>> from shardlab.sharding.dtype import parse_dtype
>>> from shardlab.planner.family import parse_family
>>> one = parse_family("layers.{0..1}.mlp.experts.{0..7}.w1.weight", (6, 4), parse_dtype("bf16"))
>>> made = stack(Model("tiny", (one,)), "experts").families[0]
>>> made.name, made.n_tensors, made.shape, made.told
('layers.*.mlp.experts.w1.weight', 2, (8, 6, 4), ('experts', 'mlp', 'embed'))

Checkpoints keep each expert and each layer apart; JAX programs hold experts in one array, to cut it
over an expert axis, and often layers too, to scan over them. The bytes are the same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownOption, short_repr
from shardlab.planner.family import Family
from shardlab.planner.model import Model
from shardlab.planner.strategies.dim_meaning import EXPERTS, LAYERS, told_axes
from shardlab.sharding.spec import Spec

_WORDS = {"experts": EXPERTS, "layers": LAYERS}
_CHOICES = {"experts": ("experts",), "layers": ("layers",), "all": ("experts", "layers")}
_LAST = re.compile(r"([A-Za-z0-9]+)[^A-Za-z0-9]*$")  # the word before a number


def stack(model: Model, over: Any) -> Model:
    """Return the model with its experts, its layers, or all of both in one array each."""
    stacked_words(over)
    known: dict[str, Model] = model.__dict__.setdefault("_stacked", {})  # a search asks often
    if over not in known:
        known[over] = _stacked(model, over)
    return known[over]


def stack_of(*wanted: Any) -> str | None:
    """Return what is to be stacked where several say so; None where nobody does.

    >>> stack_of(None, "experts"), stack_of("layers", "experts"), stack_of(None, "")
    ('experts', 'all', None)
    """
    said = (each for each in wanted if not (each is None or (isinstance(each, str) and not each)))
    words = {word for each in said for word in stacked_words(each)}
    return next((name for name, each in _CHOICES.items() if set(each) == words), None)


def stacked_words(over: Any) -> tuple[str, ...]:
    """Return what is stacked by a choice."""
    if not isinstance(over, str) or over not in _CHOICES:
        near = nearest_name(over, _CHOICES) if isinstance(over, str) else None
        raise UnknownOption(
            f"There is nothing named {short_repr(over)} to stack; there is {', '.join(_CHOICES)}.",
            fix=f"{near!r}, the nearest name." if near else "one of these.",
        )
    return _CHOICES[over]


def _stacked(model: Model, over: str) -> Model:
    families = model.families
    for what in _CHOICES[over]:
        families = tuple(made for family in families for made in _stack(family, what))
    if families == model.families:
        return model
    return replace(model, families=families, notes=(*model.notes, _note(model, families, over)))


def _note(model: Model, families: tuple[Family, ...], over: str) -> str:
    n_arrays = sum(family.n_tensors for family in families)
    what = " and ".join(_CHOICES[over])
    return (
        f"The {what} among the source's {model.n_tensors:,} tensors are stacked: "
        f"{n_arrays:,} arrays with the same bytes."
    )


def _stack(family: Family, what: str) -> tuple[Family, ...]:
    """Return the family with the number of that word as an array axis."""
    at = number_of(family, what)
    if at is None:
        return (family,)
    return tuple(_merged(family, what, at))


def number_of(family: Family, what: str) -> int | None:
    """Return which number of the path counts experts, or layers."""
    for at, piece in enumerate(family.pieces[:-1]):
        if (word := _LAST.search(piece)) and word[1] in _WORDS[what]:
            return at
    return None


def _merged(family: Family, what: str, at: int) -> Iterator[Family]:
    pieces = list(family.pieces)
    pieces[at : at + 2] = [re.sub(r"[./_\[]$", "", pieces[at]) + pieces[at + 1].removeprefix("]")]
    told = (what, *(told_axes(family) or (None,) * len(family.shape)))
    axes = None if family.axes is None else (what, *family.axes)
    spec = None if family.spec is None else Spec(None, *family.spec.entries)
    made = replace(family, pieces=tuple(pieces), axes=axes, spec=spec, told=told)
    if family.listed is None:
        ranges = (*family.ranges[:at], *family.ranges[at + 1 :])
        yield replace(made, shape=(len(family.ranges[at]), *family.shape), ranges=ranges)
        return
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for numbers in family.listed:
        counts[(*numbers[:at], *numbers[at + 1 :])] += 1
    for n in sorted(set(counts.values()), reverse=True):  # layers may have fewer experts
        alike = [numbers for numbers, count in counts.items() if count == n]
        yield replace(made, shape=(n, *family.shape)).only(alike)
