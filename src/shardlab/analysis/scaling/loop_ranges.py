"""Ranges of loop carries and of branches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from shardlab import _jax
from shardlab.analysis.scaling.aligned_programs import AlignedEquation, AlignedJaxpr
from shardlab.analysis.scaling.range_rules import Handler, Ranges
from shardlab.analysis.scaling.value_range import UNKNOWN, ValueRange, union

if TYPE_CHECKING:
    from shardlab.analysis.scaling.range_walk import RangeWalk


def _scan(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    """Return the ranges after a loop: a carry that grows by a constant is followed exactly."""
    body = equation.bodies["jaxpr"][0]
    lengths = equation.params("length")
    n_consts, n_carry = _jax.scan_operand_counts(equation.eqns[0].params)
    consts, xs = ins[:n_consts], ins[n_consts + n_carry :]
    start = ins[n_consts : n_consts + n_carry]

    def run_body(carry: Ranges) -> Ranges:
        return walk.run(body, [*consts, *carry, *xs])

    was_trial, walk.is_trial = walk.is_trial, True
    first = run_body(start)[:n_carry]
    second = run_body(first)[:n_carry]
    walk.is_trial = was_trial
    inside, after = [], []
    for number, values in enumerate(zip(start, first, second, strict=True)):
        if len(set(lengths)) > 1:
            var = body.jaxprs[0].invars[n_consts + number]
            _check_carry(walk, equation, body, var, number, lengths)
        inside.append(_extrapolate(values, [length - 1 for length in lengths]))
        after.append(_extrapolate(values, lengths))
    return [*after, *run_body(inside)[n_carry:]]


def _check_carry(
    walk: RangeWalk,
    equation: AlignedEquation,
    body: AlignedJaxpr,
    var: Any,
    number: int,
    lengths: Sequence[int],
) -> None:
    """Report a narrow float that a loop adds to, once for each device."""
    out = body.jaxprs[0].outvars[number]
    is_added = any(
        equation.name in ("add", "add_any") and out is equation.eqns[0].outvars[0]
        for equation in body.equations
    )
    dtype = getattr(var.aval, "dtype", None)
    if is_added and dtype is not None and jnp.issubdtype(dtype, jnp.inexact):
        walk.check_growing_sum(equation, dtype, lengths[0], UNKNOWN)


def _extrapolate(values: tuple[ValueRange, ...], steps: Sequence[int]) -> ValueRange:
    """Return the range of a carry after up to that many iterations."""
    start, first, second = (value.pairs for value in values)
    merged = union(list(values))
    if start is None or first is None or second is None:
        return merged
    bounds = []
    for a, b, c, n in zip(start, first, second, steps, strict=True):
        growth = (b[0] - a[0], b[1] - a[1])
        is_settled = c[0] >= min(a[0], b[0]) and c[1] <= max(a[1], b[1])
        if is_settled:
            bounds.append((min(a[0], b[0]), max(a[1], b[1])))
        elif (c[0] - b[0], c[1] - b[1]) == growth:
            bounds.append((min(a[0], a[0] + n * growth[0]), max(a[1], a[1] + n * growth[1])))
        else:
            return merged.without_bounds()
    return merged.with_bounds_of(ValueRange.of_bounds(bounds))


def _while(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    """Return unknown bounds: how often the loop runs depends on values."""
    params = equation.eqns[0].params
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    carry = [value.without_bounds() for value in ins[n_cond + n_body :]]
    body, condition = equation.bodies["body_jaxpr"][0], equation.bodies["cond_jaxpr"][0]
    was_trial, walk.is_trial = walk.is_trial, True
    outs = walk.run(body, [*ins[n_cond : n_cond + n_body], *carry])
    walk.is_trial = was_trial
    carry = [union([a, b.without_bounds()]) for a, b in zip(carry, outs, strict=True)]
    walk.run(condition, [*ins[:n_cond], *carry])
    walk.run(body, [*ins[n_cond : n_cond + n_body], *carry])
    return carry


def _cond(walk: RangeWalk, equation: AlignedEquation, ins: Ranges) -> Ranges:
    index, *operands = ins
    branches = equation.bodies["branches"]
    constant = index.constant
    if constant is not None and len(set(constant)) == 1:
        chosen = min(max(int(constant[0]), 0), len(branches) - 1)
        return walk.run(branches[chosen], operands)
    results = [walk.run(branch, operands) for branch in branches]
    return [union(list(outs)) for outs in zip(*results, strict=True)]


LOOP_RULES: Mapping[str, Handler] = {"scan": _scan, "while": _while, "cond": _cond}
