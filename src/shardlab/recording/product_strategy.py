"""Which operand of a product moves if both want a mesh axis for different dimensions.

Shardy's explicit reshards move what is smallest; XLA's partitioner, which compiles the program,
keeps the sharding of the result. In FSDP the batch and a dimension of the weight are sharded over
'data': XLA gathers the weight, whatever its size. So these axes are decided here, as XLA does, and
Shardy decides the rest.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from shardlab._jax.explicit_collectives import Entries, InsertedCollective

# What a dimension is in a product: ("batch" | "contracted" | "lhs" | "rhs", its number).
_Factor = tuple[str, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProductStrategy:
    """The shardings with which a product is computed, and the collectives around it."""

    operands: tuple[Entries | None, ...]
    result: Entries | None
    gathers: tuple[InsertedCollective, ...] = ()  # of operands, before
    scattered: tuple[str, ...] = ()  # axes over which the sum is scattered, after


def choose_product_strategy(
    eqn: Any, operands: Sequence[Entries | None], result: Entries | None
) -> ProductStrategy:
    """Return how XLA computes a `dot_general` with these shardings."""
    unchanged = ProductStrategy(operands=tuple(operands), result=result)
    if eqn.primitive.name != "dot_general" or result is None or None in operands:
        return unchanged
    ranks = [len(atom.aval.shape) for atom in eqn.invars]
    factors = _product_factors(eqn.params["dimension_numbers"], ranks)
    sides = [_padded(entries or (), rank) for entries, rank in zip(operands, ranks, strict=True)]
    out = _padded(result, len(factors[2]))
    gathered: list[list[str]] = [[], []]
    scattered: list[str] = []
    for axis, wanted in _factors_by_axis(out, factors[2]).items():
        used = [
            _factors_by_axis(side, side_factors).get(axis)
            for side, side_factors in zip(sides, factors[:2], strict=True)
        ]
        summed = {factor for factor in used if factor is not None}
        if len(summed) == 1 and next(iter(summed))[0] == "contracted":
            # Each device has a term of the sum; an operand that is replicated is sliced.
            if _is_last(out, axis):
                scattered.append(axis)
                out = _without(out, axis)
            continue
        for number, factor in enumerate(used):
            # An operand that has the wanted dimension too changes dimensions: an all-to-all.
            is_in_the_way = factor not in (None, wanted) and wanted not in factors[number]
            if is_in_the_way and _is_last(sides[number], axis):
                gathered[number].append(axis)
                sides[number] = _without(sides[number], axis)
    if not any(gathered) and not scattered:
        return unchanged
    return ProductStrategy(
        operands=tuple(sides),
        result=out,
        gathers=tuple(
            InsertedCollective("all_gather", tuple(axes), number, sides[number])
            for number, axes in enumerate(gathered)
            if axes
        ),
        scattered=tuple(scattered),
    )


def scatter_sum(
    collectives: Sequence[InsertedCollective], axes: tuple[str, ...], entries: Entries | None
) -> tuple[InsertedCollective, ...]:
    """Return the collectives with the sum over `axes` scattered instead of replicated."""
    scattered: list[InsertedCollective] = []
    for item in collectives:
        rest = tuple(name for name in item.axes if name not in axes)
        if item.operand is not None or item.kind != "all_reduce" or len(rest) == len(item.axes):
            scattered.append(item)
            continue
        scattered.append(InsertedCollective("reduce_scatter", axes, None, entries))
        if rest:
            scattered.append(InsertedCollective("all_reduce", rest, None, entries))
    return tuple(scattered)


def _product_factors(dimension_numbers: Any, ranks: Sequence[int]) -> list[list[_Factor]]:
    """Return the factor of each dimension of the operands and of the result."""
    contracted, batch = dimension_numbers
    factors: list[list[_Factor]] = []
    for side, name in enumerate(("lhs", "rhs")):
        of_side: list[_Factor] = []
        for dim in range(ranks[side]):
            if dim in batch[side]:
                of_side.append(("batch", tuple(batch[side]).index(dim)))
            elif dim in contracted[side]:
                of_side.append(("contracted", tuple(contracted[side]).index(dim)))
            else:
                of_side.append((name, dim))
        factors.append(of_side)
    n_batch = len(tuple(batch[0]))
    free = [factor for side in factors for factor in side if factor[0] in ("lhs", "rhs")]
    return [*factors, [*(("batch", i) for i in range(n_batch)), *free]]


def _padded(entries: Entries, rank: int) -> Entries:
    return (*entries, *((),) * (rank - len(entries)))


def _factors_by_axis(entries: Entries, factors: Sequence[_Factor]) -> dict[str, _Factor]:
    return {name: factor for names, factor in zip(entries, factors, strict=True) for name in names}


def _is_last(entries: Entries, axis: str) -> bool:
    """Return whether a dimension is sharded over this axis after all others."""
    return any(names and names[-1] == axis for names in entries)


def _without(entries: Entries, axis: str) -> Entries:
    return tuple(tuple(name for name in names if name != axis) for names in entries)
