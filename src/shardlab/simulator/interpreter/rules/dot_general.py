"""dot_general with device axes, bound once as the matmul that the unsharded program would do.

An axis that both operands vary over becomes a batch axis, or a contracted one when the product is
to be summed over devices (`contract`); an axis of one operand only is one more free axis. Axes of
one kind that stand side by side are merged first: XLA's CPU backend copies operands whose kind of
axis is split in two, and merging is a reshape that moves nothing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

from jax import lax

from shardlab import _jax
from shardlab.simulator.interpreter.stacked_array import MeshAxes, Slot, StackedArray, from_slots


def dot_general(
    axes: MeshAxes,
    primitive: Any,
    params: dict[str, Any],
    ins: list[StackedArray],
    contract: Collection[str] = (),
) -> list[StackedArray]:
    """Return the product; summed over the mesh axes `contract`, which both operands vary over."""
    lhs, rhs = ins
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    shared = [name for name in lhs.device_axes if name in rhs.device_axes]
    pairs = _Pairs(
        contract=[(lhs.device_axes[n], rhs.device_axes[n]) for n in shared if n in contract]
        + _positions(lhs, rhs, lhs_contract, rhs_contract),
        batch=[(lhs.device_axes[n], rhs.device_axes[n]) for n in shared if n not in contract]
        + _positions(lhs, rhs, lhs_batch, rhs_batch),
    )
    batch_slots = _batch_slots(lhs, pairs, lhs_batch)
    if batch_slots is None:
        return [_device_axes_first(axes, primitive, params, lhs, rhs, pairs)]
    free_slots = _free_slots(lhs, rhs, pairs, len(lhs_batch))
    array = _merged_dot(primitive, params, lhs.array, rhs.array, pairs)
    return [from_slots(array, (*batch_slots, *free_slots))]


@dataclasses.dataclass(frozen=True)
class _Pairs:
    """Positions (in lhs, in rhs) of the axes that are contracted and that are batched."""

    contract: list[tuple[int, int]]
    batch: list[tuple[int, int]]

    def __post_init__(self) -> None:
        self.contract.sort()
        self.batch.sort()


def _positions(
    lhs: StackedArray, rhs: StackedArray, lhs_axes: Sequence[int], rhs_axes: Sequence[int]
) -> list[tuple[int, int]]:
    return [
        (lhs.position_of_local(i), rhs.position_of_local(j))
        for i, j in zip(lhs_axes, rhs_axes, strict=True)
    ]


def _batch_slots(lhs: StackedArray, pairs: _Pairs, lhs_batch: Sequence[int]) -> list[Slot] | None:
    """Return the slots of the batch axes in lhs order, or None if local ones would change order."""
    slots = [lhs.slots[i] for i, _ in pairs.batch]
    local = [slot for slot in slots if isinstance(slot, int)]
    if local != list(lhs_batch):
        return None
    return [lhs_batch.index(s) if isinstance(s, int) else s for s in slots]


def _free_slots(lhs: StackedArray, rhs: StackedArray, pairs: _Pairs, n_batch: int) -> list[Slot]:
    """Return the slots of the axes that survive on either side, local ones numbered onwards."""
    out: list[Slot] = []
    number = n_batch
    for side, value in ((0, lhs), (1, rhs)):
        used = {pair[side] for pair in (*pairs.contract, *pairs.batch)}
        for position, slot in enumerate(value.slots):
            if position in used:
                continue
            out.append(slot if isinstance(slot, str) else number)
            number += isinstance(slot, int)
    return out


def _device_axes_first(
    axes: MeshAxes,
    primitive: Any,
    params: dict[str, Any],
    lhs: StackedArray,
    rhs: StackedArray,
    pairs: _Pairs,
) -> StackedArray:
    """The general case: device batch axes first, then the local ones in the order asked for."""
    (_, _), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    names = [
        n for n in lhs.device_axes if (lhs.device_axes[n], rhs.device_axes.get(n)) in pairs.batch
    ]
    batch = [(lhs.device_axes[n], rhs.device_axes[n]) for n in names]
    batch += _positions(lhs, rhs, lhs_batch, rhs_batch)
    numbers = _numbers(pairs.contract, batch)
    (array,) = _jax.bind_primitive(
        primitive, [lhs.array, rhs.array], {**params, "dimension_numbers": numbers}
    )
    slots = [*names, *range(len(lhs_batch)), *_free_slots(lhs, rhs, pairs, len(lhs_batch))]
    return from_slots(array, slots)


def _numbers(
    contract: Sequence[tuple[int, int]], batch: Sequence[tuple[int, int]]
) -> tuple[Any, Any]:
    return (
        (tuple(i for i, _ in contract), tuple(j for _, j in contract)),
        (tuple(i for i, _ in batch), tuple(j for _, j in batch)),
    )


# ------------------------------------------------------------------------------------ merging


def _merged_dot(primitive: Any, params: dict[str, Any], lhs: Any, rhs: Any, pairs: _Pairs) -> Any:
    """Bind the product on operands whose neighbouring axes of one kind have been merged."""
    contract, batch = _runs_of_pairs(pairs.contract), _runs_of_pairs(pairs.batch)
    lhs_runs, lhs_free = _runs(lhs.ndim, [r[0] for r in contract], [r[0] for r in batch])
    rhs_runs, rhs_free = _runs(rhs.ndim, [r[1] for r in contract], [r[1] for r in batch])
    numbers = (
        (_places(lhs_runs, contract, 0), _places(rhs_runs, contract, 1)),
        (_places(lhs_runs, batch, 0), _places(rhs_runs, batch, 1)),
    )
    (out,) = _jax.bind_primitive(
        primitive,
        [_merge(lhs, lhs_runs), _merge(rhs, rhs_runs)],
        {**params, "dimension_numbers": numbers},
    )
    shape = [lhs.shape[i] for i, _ in pairs.batch]
    shape += [lhs.shape[p] for run in lhs_free for p in run]
    shape += [rhs.shape[p] for run in rhs_free for p in run]
    return out if out.shape == tuple(shape) else lax.reshape(out, tuple(shape))


_Run = tuple[int, ...]


def _runs_of_pairs(pairs: Sequence[tuple[int, int]]) -> list[tuple[_Run, _Run]]:
    """Group pairs whose positions follow one another on both sides."""
    runs: list[tuple[list[int], list[int]]] = []
    for i, j in pairs:
        if runs and runs[-1][0][-1] + 1 == i and runs[-1][1][-1] + 1 == j:
            runs[-1][0].append(i)
            runs[-1][1].append(j)
        else:
            runs.append(([i], [j]))
    return [(tuple(a), tuple(b)) for a, b in runs]


def _runs(ndim: int, contract: list[_Run], batch: list[_Run]) -> tuple[list[_Run], list[_Run]]:
    """Return all runs of one operand in order, and those of them that are free."""
    taken = {p for run in (*contract, *batch) for p in run}
    free: list[list[int]] = []
    for p in range(ndim):
        if p in taken:
            continue
        if free and free[-1][-1] + 1 == p:
            free[-1].append(p)
        else:
            free.append([p])
    free_runs = [tuple(run) for run in free]
    return sorted([*contract, *batch, *free_runs]), free_runs


def _places(runs: list[_Run], kind: list[tuple[_Run, _Run]], side: int) -> tuple[int, ...]:
    return tuple(runs.index(pair[side]) for pair in kind)


def _merge(array: Any, runs: list[_Run]) -> Any:
    shape = tuple(math.prod(array.shape[p] for p in run) for run in runs)
    return array if shape == array.shape else lax.reshape(array, shape)
