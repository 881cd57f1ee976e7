"""dot_general on stacked arrays, bound once as the matmul that the unsharded program would run.

A mesh axis that both operands vary over becomes a batch dimension, or a contracted one if the
product must be summed over devices (`contract`). A mesh axis of one operand only becomes one more
free dimension. Neighbouring dimensions of one kind are merged first: XLA's CPU backend copies an
operand if its contracted (or free, or batch) dimensions are split in two, and merging neighbours is
a reshape that moves no data. The merged operands are those of the unsharded matmul.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

from jax import lax

from shardlab import _jax
from shardlab.simulator.interpreter.stacked_array import Dim, MeshAxes, StackedArray


def multiply_stacked(
    axes: MeshAxes,
    primitive: Any,
    params: dict[str, Any],
    ins: list[StackedArray],
    contract: Collection[str] = (),
) -> list[StackedArray]:
    """Return the product, summed over the mesh axes `contract`, which both operands vary over."""
    lhs, rhs = ins
    lhs_axes, rhs_axes = lhs.device_axes, rhs.device_axes
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    shared = [name for name in lhs_axes if name in rhs_axes]
    pairs = _PairedDims(
        contract=[(lhs_axes[n], rhs_axes[n]) for n in shared if n in contract]
        + _paired_positions(lhs, rhs, lhs_contract, rhs_contract),
        batch=[(lhs_axes[n], rhs_axes[n]) for n in shared if n not in contract]
        + _paired_positions(lhs, rhs, lhs_batch, rhs_batch),
    )
    batch_dims = _batch_dims(lhs, pairs, lhs_batch)
    if batch_dims is None:
        return [_dot_device_axes_first(primitive, params, lhs, rhs, pairs)]
    free_dims = _free_dims(lhs, rhs, pairs, len(lhs_batch))
    array = _merged_dot(primitive, params, lhs.array, rhs.array, pairs)
    return [StackedArray.from_dims(array, (*batch_dims, *free_dims))]


@dataclasses.dataclass(frozen=True)
class _PairedDims:
    """Positions (in lhs, in rhs) of the contracted and of the batch dimensions."""

    contract: list[tuple[int, int]]
    batch: list[tuple[int, int]]

    def __post_init__(self) -> None:
        # In lhs order, so that neighbours in the array are neighbours here and can be merged.
        self.contract.sort()
        self.batch.sort()


def _paired_positions(
    lhs: StackedArray, rhs: StackedArray, lhs_dims: Sequence[int], rhs_dims: Sequence[int]
) -> list[tuple[int, int]]:
    return [
        (lhs.position_of_local(i), rhs.position_of_local(j))
        for i, j in zip(lhs_dims, rhs_dims, strict=True)
    ]


def _batch_dims(
    lhs: StackedArray, pairs: _PairedDims, lhs_batch: Sequence[int]
) -> list[Dim] | None:
    """Return the batch dims in lhs order, or None if that would reorder local batch dims."""
    dims = [lhs.dims[i] for i, _ in pairs.batch]
    local = [dim for dim in dims if isinstance(dim, int)]
    if local != list(lhs_batch):
        return None
    return [lhs_batch.index(d) if isinstance(d, int) else d for d in dims]


def _free_dims(lhs: StackedArray, rhs: StackedArray, pairs: _PairedDims, n_batch: int) -> list[Dim]:
    """Return the dims that are neither contracted nor batched, local ones numbered onwards."""
    out: list[Dim] = []
    number = n_batch
    for side, value in ((0, lhs), (1, rhs)):
        used = {pair[side] for pair in (*pairs.contract, *pairs.batch)}
        for position, dim in enumerate(value.dims):
            if position in used:
                continue
            out.append(dim if isinstance(dim, str) else number)
            number += isinstance(dim, int)
    return out


def _dot_device_axes_first(
    primitive: Any,
    params: dict[str, Any],
    lhs: StackedArray,
    rhs: StackedArray,
    pairs: _PairedDims,
) -> StackedArray:
    """The general case: device batch axes first, then local batch dims in the requested order."""
    (_, _), (lhs_batch, rhs_batch) = params["dimension_numbers"]
    lhs_axes, rhs_axes = lhs.device_axes, rhs.device_axes
    names = [n for n in lhs_axes if (lhs_axes[n], rhs_axes.get(n)) in pairs.batch]
    batch = [(lhs_axes[n], rhs_axes[n]) for n in names]
    batch += _paired_positions(lhs, rhs, lhs_batch, rhs_batch)
    numbers = _dimension_numbers(pairs.contract, batch)
    (array,) = _jax.bind_primitive(
        primitive, [lhs.array, rhs.array], {**params, "dimension_numbers": numbers}
    )
    free_dims = _free_dims(lhs, rhs, pairs, len(lhs_batch))
    return StackedArray.from_dims(array, [*names, *range(len(lhs_batch)), *free_dims])


def _dimension_numbers(
    contract: Sequence[tuple[int, int]], batch: Sequence[tuple[int, int]]
) -> tuple[Any, Any]:
    return (
        (tuple(i for i, _ in contract), tuple(j for _, j in contract)),
        (tuple(i for i, _ in batch), tuple(j for _, j in batch)),
    )


# ---------------------------------------------------------------------- merging neighbouring dims


def _merged_dot(
    primitive: Any, params: dict[str, Any], lhs: Any, rhs: Any, pairs: _PairedDims
) -> Any:
    """Bind the product on operands whose neighbouring dims of one kind are merged."""
    contract, batch = _runs_of_pairs(pairs.contract), _runs_of_pairs(pairs.batch)
    lhs_runs, lhs_free = _operand_runs(lhs.ndim, [r[0] for r in contract], [r[0] for r in batch])
    rhs_runs, rhs_free = _operand_runs(rhs.ndim, [r[1] for r in contract], [r[1] for r in batch])
    numbers = (
        (_run_positions(lhs_runs, contract, 0), _run_positions(rhs_runs, contract, 1)),
        (_run_positions(lhs_runs, batch, 0), _run_positions(rhs_runs, batch, 1)),
    )
    (out,) = _jax.bind_primitive(
        primitive,
        [_merge_runs(lhs, lhs_runs), _merge_runs(rhs, rhs_runs)],
        {**params, "dimension_numbers": numbers},
    )
    shape = [lhs.shape[i] for i, _ in pairs.batch]
    shape += [lhs.shape[p] for run in lhs_free for p in run]
    shape += [rhs.shape[p] for run in rhs_free for p in run]
    return out if out.shape == tuple(shape) else lax.reshape(out, tuple(shape))


# Consecutive positions of an operand that are merged into one dimension.
_Run = tuple[int, ...]


def _runs_of_pairs(pairs: Sequence[tuple[int, int]]) -> list[tuple[_Run, _Run]]:
    """Group pairs whose positions are consecutive in both operands."""
    runs: list[tuple[list[int], list[int]]] = []
    for i, j in pairs:
        if runs and runs[-1][0][-1] + 1 == i and runs[-1][1][-1] + 1 == j:
            runs[-1][0].append(i)
            runs[-1][1].append(j)
        else:
            runs.append(([i], [j]))
    return [(tuple(a), tuple(b)) for a, b in runs]


def _operand_runs(
    ndim: int, contract: list[_Run], batch: list[_Run]
) -> tuple[list[_Run], list[_Run]]:
    """Return all runs of one operand in order, and those of them that are free."""
    used = {p for run in (*contract, *batch) for p in run}
    free: list[list[int]] = []
    for p in range(ndim):
        if p in used:
            continue
        if free and free[-1][-1] + 1 == p:
            free[-1].append(p)
        else:
            free.append([p])
    free_runs = [tuple(run) for run in free]
    return sorted([*contract, *batch, *free_runs]), free_runs


def _run_positions(runs: list[_Run], kind: list[tuple[_Run, _Run]], side: int) -> tuple[int, ...]:
    return tuple(runs.index(pair[side]) for pair in kind)


def _merge_runs(array: Any, runs: list[_Run]) -> Any:
    shape = tuple(math.prod(array.shape[p] for p in run) for run in runs)
    return array if shape == array.shape else lax.reshape(array, shape)
