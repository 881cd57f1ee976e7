"""Stacking: the experts or layers of a model in one array each, with their number as dimension 0.

>>> from shardlab.sharding.dtype import parse_dtype
>>> from shardlab.planner.tensor_group import parse_tensor_group
>>> path = "layers.{0..1}.mlp.experts.{0..7}.w1.weight"
>>> group = parse_tensor_group(path, (6, 4), parse_dtype("bf16"))
>>> stacked = stack_model(Model(name="tiny", groups=(group,)), "experts").groups[0]
>>> stacked.name, stacked.n_tensors, stacked.shape, stacked.stacked_meanings
('layers.*.mlp.experts.w1.weight', 2, (8, 6, 4), ('experts', 'mlp', 'embed'))

Checkpoints store each expert and each layer as a separate tensor. JAX programs store experts in one
array, to shard it over an expert axis, and often layers too, to scan over them. The bytes are the
same.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import UnknownOption, short_repr
from shardlab.planner.model import Model
from shardlab.planner.strategies.dim_meaning import (
    EXPERT_WORDS,
    LAYER_WORDS,
    infer_dim_meanings,
)
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.spec import Spec

_WORDS = {"experts": EXPERT_WORDS, "layers": LAYER_WORDS}
# option -> dimensions that are stacked, in this order: layers end up before experts
_OPTIONS = {"experts": ("experts",), "layers": ("layers",), "all": ("experts", "layers")}
_LAST_WORD = re.compile(r"([A-Za-z0-9]+)[^A-Za-z0-9]*$")  # before a number


def stack_model(model: Model, option: Any) -> Model:
    """Return the model with its experts, its layers, or all of both in one array each."""
    parse_stack_option(option)
    # Cached in the model: a search over meshes stacks the same model for each candidate.
    cache: dict[str, Model] = model.__dict__.setdefault("_stacked_models", {})
    if option not in cache:
        cache[option] = _build_stacked(model, option)
    return cache[option]


def merge_stack_options(*options: Any) -> str | None:
    """Return the option that stacks what any of these stack; None if all are empty.

    >>> merge_stack_options(None, "experts"), merge_stack_options("layers", "experts")
    ('experts', 'all')
    >>> merge_stack_options(None, "") is None
    True
    """
    dims = {
        dim
        for option in options
        if not (option is None or (isinstance(option, str) and not option))
        for dim in parse_stack_option(option)
    }
    return next((name for name, stacked in _OPTIONS.items() if set(stacked) == dims), None)


def parse_stack_option(option: Any) -> tuple[str, ...]:
    """Return the dimensions that an option stacks."""
    if not isinstance(option, str) or option not in _OPTIONS:
        suggestion = nearest_name(option, _OPTIONS) if isinstance(option, str) else None
        raise UnknownOption(
            f"Cannot stack {short_repr(option)}. Known options: {', '.join(_OPTIONS)}.",
            fix=f"Did you mean {suggestion!r}?" if suggestion else "use one of these options.",
        )
    return _OPTIONS[option]


def _build_stacked(model: Model, option: str) -> Model:
    groups = model.groups
    for dim in _OPTIONS[option]:
        groups = tuple(stacked for group in groups for stacked in _stack_group(group, dim))
    if groups == model.groups:
        return model
    n_arrays = sum(group.n_tensors for group in groups)
    note = (
        f"The {' and '.join(_OPTIONS[option])} among the source's {model.n_tensors:,} tensors are "
        f"stacked: {n_arrays:,} arrays with the same bytes."
    )
    return replace(model, groups=groups, notes=(*model.notes, note))


def find_stack_position(group: TensorGroup, dim: str) -> int | None:
    """Return the position of the number in the path that counts experts, or layers."""
    for position, text in enumerate(group.path_parts[:-1]):
        if (word := _LAST_WORD.search(text)) and word[1] in _WORDS[dim]:
            return position
    return None


def _stack_group(group: TensorGroup, dim: str) -> Iterator[TensorGroup]:
    """Yield the group with the number that counts `dim` as a leading dimension."""
    position = find_stack_position(group, dim)
    if position is None:
        yield group
        return
    path_parts = list(group.path_parts)
    # The number goes away with one of the separators around it: experts.3.w1 becomes experts.w1.
    before = re.sub(r"[./_\[]$", "", path_parts[position])
    path_parts[position : position + 2] = [before + path_parts[position + 1].removeprefix("]")]
    stacked = replace(
        group,
        path_parts=tuple(path_parts),
        axes=None if group.axes is None else (dim, *group.axes),
        spec=None if group.spec is None else Spec(None, *group.spec.entries),
        stacked_meanings=(dim, *(infer_dim_meanings(group) or (None,) * len(group.shape))),
    )
    if group.listed_numbers is None:
        ranges = (*group.ranges[:position], *group.ranges[position + 1 :])
        yield replace(stacked, shape=(len(group.ranges[position]), *group.shape), ranges=ranges)
        return
    counts: dict[tuple[str, ...], int] = defaultdict(int)
    for numbers in group.listed_numbers:
        counts[(*numbers[:position], *numbers[position + 1 :])] += 1
    # Layers may have different numbers of experts, so arrays of different shapes.
    for size in sorted(set(counts.values()), reverse=True):
        members = [numbers for numbers, count in counts.items() if count == size]
        yield replace(stacked, shape=(size, *group.shape)).with_numbers(members)
