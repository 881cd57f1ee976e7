"""The arguments of a program as groups that get one sharding each, and its constraint points."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardlab.autoshard.spec_choices import DimAxes
from shardlab.tracing.stage import program_name

_NUMBER = re.compile(r"\d+")
_BITS = 8
_MIN_STATE_LEAVES = 2
_JIT_TYPE = type(jax.jit(lambda: None))


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One array among the arguments."""

    name: str  # params['layers'][3]['up']
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int
    is_state: bool  # the step returns its next value
    annotated: DimAxes | None  # what the person wrote


@dataclass(frozen=True, kw_only=True)
class Group:
    """Arrays that get the same sharding: same path but for numbers, same shape and dtype.

    Optimizer states are in the group of their parameter. A constraint point is a group too, with
    `point` as its name and no leaves.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    leaves: tuple[int, ...]
    n_bytes: int
    is_state: bool
    annotated: DimAxes | None = None
    point: str | None = None
    source: str = ""
    is_carry: bool = False

    @property
    def is_fixed(self) -> bool:
        return self.annotated is not None


def read_leaves(
    named_leaves: Sequence[tuple[str, Any]], state: frozenset[int], axis_names: Sequence[str]
) -> tuple[Leaf, ...]:
    """Return the arrays of the arguments with what is known about them."""
    return tuple(
        Leaf(
            name=name,
            shape=tuple(array.shape),
            dtype=str(array.dtype),
            n_bytes=prod(array.shape) * _item_bytes(array.dtype),
            is_state=index in state,
            annotated=_annotated_axes(array, axis_names),
        )
        for index, (name, array) in enumerate(named_leaves)
    )


def _item_bytes(dtype: Any) -> int:
    return int(getattr(dtype, "itemsize", 4))


def _annotated_axes(array: Any, axis_names: Sequence[str]) -> DimAxes | None:
    """Return the sharding that an argument already has, if it shards something on these axes."""
    sharding = getattr(array, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not set(sharding.mesh.axis_names) <= set(
        axis_names
    ):
        return None
    entries = [
        () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        for entry in sharding.spec
    ]
    axes = tuple(entries + [()] * (len(array.shape) - len(entries)))
    return axes if any(axes) else None


def group_leaves(leaves: Sequence[Leaf]) -> tuple[Group, ...]:
    """Return the groups of these arrays, in the order in which the program takes them."""
    ties = _tie_states(leaves)
    members: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        first = leaves[ties[index]]
        key = _NUMBER.sub("*", first.name), leaf.shape, leaf.annotated
        members.setdefault(key, []).append(index)
    return tuple(_make_group(leaves, indices) for indices in members.values())


# Words of optimizer states: a group is called after its parameter.
_OPTIMIZER_WORDS = frozenset(
    {"adam", "ema", "exp_avg", "inner_state", "m", "mean", "momentum", "mu", "nu", "opt"}
    | {"opt_state", "optimizer", "optimizer_state", "square", "sq", "trace", "v", "velocity"}
)


def _make_group(leaves: Sequence[Leaf], indices: Sequence[int]) -> Group:
    named = min(indices, key=lambda i: (_is_optimizer_name(leaves[i].name), i))
    skeleton = _NUMBER.sub("*", leaves[named].name)
    copies = [i for i in indices if _NUMBER.sub("*", leaves[i].name) == skeleton]
    leaf = leaves[named]
    return Group(
        name=skeleton if len(copies) > 1 else leaf.name,
        shape=leaf.shape,
        dtype=leaf.dtype,
        leaves=tuple(indices),
        n_bytes=sum(leaves[index].n_bytes for index in indices),
        is_state=any(leaves[index].is_state for index in indices),
        annotated=leaf.annotated,
    )


def _is_optimizer_name(name: str) -> bool:
    return not _OPTIMIZER_WORDS.isdisjoint(re.findall(r"[A-Za-z_]+", name)[:3])


def _tie_states(leaves: Sequence[Leaf]) -> list[int]:
    """Return for each leaf the first one that it follows: an optimizer state its parameter.

    Two state subtrees with the same relative paths and shapes play the same part: `params` and
    `opt_state[0].mu` of optax. A leaf is tied to the leaf at the same place in the first of them.
    """
    parts = [tuple(re.findall(r"\w+", leaf.name)) for leaf in leaves]
    subtrees: dict[tuple[str, ...], list[int]] = {}
    for index, leaf in enumerate(leaves):
        if leaf.is_state:
            for depth in range(1, len(parts[index])):
                subtrees.setdefault(parts[index][:depth], []).append(index)
    first_of: dict[Any, tuple[str, ...]] = {}
    ties = list(range(len(leaves)))
    # Larger subtrees first, so that a whole optimizer state follows all of the parameters.
    for prefix, indices in sorted(subtrees.items(), key=lambda item: -len(item[1])):
        if len(indices) < _MIN_STATE_LEAVES:
            continue
        shape_key = tuple((parts[i][len(prefix) :], leaves[i].shape) for i in indices)
        first = first_of.setdefault(shape_key, prefix)
        if first != prefix:
            for index, other in zip(indices, subtrees[first], strict=True):
                ties[index] = min(ties[index], ties[other])
    return ties


def find_state(f: Callable[..., Any], args: Sequence[Any]) -> Mapping[int, int]:
    """Return which results of `f` are the next values of which arguments, by leaf numbers.

    A result, or an element of a result tuple, is the next value of an argument that has the same
    tree structure, shapes and dtypes. Such arguments are assumed to be donated.
    """
    results = jax.eval_shape(f, *args)
    parts = list(results) if isinstance(results, (tuple, list)) else [results]
    if len(args) == 1 and jax.tree.structure(results) == jax.tree.structure(args[0]):
        parts = [results]
    argument_starts = _starts(args)
    result_starts = _starts(parts)
    state: dict[int, int] = {}
    used: set[int] = set()
    for result, result_start in zip(parts, result_starts, strict=True):
        for number, arg in enumerate(args):
            is_large = len(jax.tree.leaves(arg)) >= _MIN_STATE_LEAVES
            # A lone array of equal shape is state only in the same place: f(w, x) -> (w, loss).
            is_candidate = is_large or (number == 0 and result_start == 0 and len(parts) > 1)
            if number not in used and is_candidate and _is_same_tree(arg, result):
                used.add(number)
                for offset in range(len(jax.tree.leaves(arg))):
                    state[result_start + offset] = argument_starts[number] + offset
                break
    return state


def _starts(trees: Sequence[Any]) -> list[int]:
    starts, total = [], 0
    for tree in trees:
        starts.append(total)
        total += len(jax.tree.leaves(tree))
    return starts


def _is_same_tree(first: Any, second: Any) -> bool:
    if jax.tree.structure(first) != jax.tree.structure(second):
        return False
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(a.shape == b.shape and a.dtype == b.dtype for a, b in pairs)


def bind_constants(
    f: Callable[..., Any], args: tuple[Any, ...]
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a function of arrays only, and its arguments, in the same pytrees.

    What is no array (static arguments, functions inside of an Equinox module) becomes a constant
    of the function, and None in its arguments and results. Arguments that `f` changes in place, as
    NNX modules, come back as its first results.
    """
    leaves, tree = jax.tree.flatten(args)
    is_array = [_is_array(leaf) for leaf in leaves]
    if all(is_array) and isinstance(f, _JIT_TYPE):
        return f, args  # its donations still apply

    def call_with_arrays(*new_args: Any) -> Any:
        arrays = iter(jax.tree.leaves(new_args))
        filled = [
            next(arrays) if is_traced else leaf
            for leaf, is_traced in zip(leaves, is_array, strict=True)
        ]
        full_args = jax.tree.unflatten(tree, filled)
        starts = _starts(full_args)
        result = f(*full_args)
        changed = []
        for arg, start in zip(full_args, starts, strict=True):
            after = jax.tree.leaves(arg)
            before = filled[start : start + len(after)]
            if any(new is not old for new, old in zip(after, before, strict=False)):
                changed.append(arg)
        return _arrays_only((*changed, result) if changed else result)

    functools.update_wrapper(call_with_arrays, f)
    call_with_arrays.__name__ = call_with_arrays.__qualname__ = program_name(f)
    return call_with_arrays, _arrays_only(args)


def _arrays_only(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf if _is_array(leaf) else None, tree)


def _is_array(leaf: Any) -> bool:
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")
