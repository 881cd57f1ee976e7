"""Stacking: many tensors alike as one array, with their number as its first array axis.

>>> from shardlab.sharding.dtype import parse_dtype
>>> from shardlab.planner.tensor_group import parse_tensor_group
>>> one = parse_family("layers.{0..1}.mlp.experts.{0..7}.w1.weight", (6, 4), parse_dtype("bf16"))
>>> made = stack_model(Model("tiny", (one,)), "experts").groups[0]
>>> made.name, made.n_tensors, made.shape, made.stacked_meanings
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
from shardlab.planner.tensor_group import TensorGroup
from shardlab.planner.model import Model
from shardlab.planner.strategies.dim_meaning import EXPERT_WORDS, LAYER_WORDS, infer_dim_meanings
from shardlab.sharding.spec import Spec

_WORDS = {"experts": EXPERT_WORDS, "layers": LAYER_WORDS}
_CHOICES = {"experts": ("experts",), "layers": ("layers",), "all": ("experts", "layers")}
_LAST = re.compile(r"([A-Za-z0-9]+)[^A-Za-z0-9]*$")  # the word before a number


def stack_model(model: Model, over: Any) -> Model:
    """Return the model with its experts, its layers, or all of both in one array each."""
    parse_stack_option(over)
    known: dict[str, Model] = model.__dict__.setdefault("_stacked", {})  # a search asks often
    if over not in known:
        known[over] = _stacked(model, over)
    return known[over]


def merge_stack_options(*wanted: Any) -> str | None:
    """Return what is to be stacked where several say so; None where nobody does.

    >>> merge_stack_options(None, "experts"), merge_stack_options("layers", "experts"), merge_stack_options(None, "")
    ('experts', 'all', None)
    """
    said = (each for each in wanted if not (each is None or (isinstance(each, str) and not each)))
    words = {word for each in said for word in parse_stack_option(each)}
    return next((name for name, each in _CHOICES.items() if set(each) == words), None)


def parse_stack_option(over: Any) -> tuple[str, ...]:
    """Return what is stacked by a choice."""
    if not isinstance(over, str) or over not in _CHOICES:
        near = nearest_name(over, _CHOICES) if isinstance(over, str) else None
        raise UnknownOption(
            f"There is nothing named {short_repr(over)} to stack; there is {', '.join(_CHOICES)}.",
            fix=f"{near!r}, the nearest name." if near else "one of these.",
        )
    return _CHOICES[over]


def _stacked(model: Model, over: str) -> Model:
    groups = model.groups
    for what in _CHOICES[over]:
        groups = tuple(made for group in groups for made in _stack(group, what))
    if groups == model.groups:
        return model
    return replace(model, groups=groups, notes=(*model.notes, _note(model, groups, over)))


def _note(model: Model, groups: tuple[TensorGroup, ...], over: str) -> str:
    n_arrays = sum(group.n_tensors for group in groups)
    what = " and ".join(_CHOICES[over])
    return (
        f"The {what} among the source's {model.n_tensors:,} tensors are stacked: "
        f"{n_arrays:,} arrays with the same bytes."
    )


def _stack(group: TensorGroup, what: str) -> tuple[TensorGroup, ...]:
    """Return the family with the number of that word as an array axis."""
    at = find_stack_position(group, what)
    if at is None:
        return (group,)
    return tuple(_merged(group, what, at))


def find_stack_position(group: TensorGroup, what: str) -> int | None:
    """Return which number of the path counts experts, or layers."""
    for at, piece in enumerate(group.path_parts[:-1]):
        if (word := _LAST.search(piece)) and word[1] in _WORDS[what]:
            return at
    return None


def _merged(group: TensorGroup, what: str, at: int) -> Iterator[TensorGroup]:
    pieces = list(group.path_parts)
    pieces[at : at + 2] = [re.sub(r"[./_\[]$", "", pieces[at]) + pieces[at + 1].removeprefix("]")]
    told = (what, *(infer_dim_meanings(group) or (None,) * len(group.shape)))
    axes = None if group.axes is None else (what, *group.axes)
    spec = None if group.spec is None else Spec(None, *group.spec.entries)
    made = replace(group, path_parts=tuple(pieces), axes=axes, spec=spec, stacked_meanings=told)
    if group.listed_numbers is None:
        ranges = (*group.ranges[:at], *group.ranges[at + 1 :])
        yield replace(made, shape=(len(group.ranges[at]), *group.shape), ranges=ranges)
        return
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for numbers in group.listed_numbers:
        counts[(*numbers[:at], *numbers[at + 1 :])] += 1
    for n in sorted(set(counts.values()), reverse=True):  # layers may have fewer experts
        alike = [numbers for numbers, count in counts.items() if count == n]
        yield replace(made, shape=(n, *group.shape)).with_numbers(alike)
