"""Follows device positions and integers through a program, on all its meshes at once.

It finds two things that small meshes cannot show. A position that is compared with, divided by or
looked up in a constant: `axis_index == 5` is never true on 4 devices. And a number that leaves its
type only when there are many devices: an int8 counter, or a bfloat16 sum of 256 terms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from shardlab import _jax
from shardlab.analysis.scaling.aligned_programs import AlignedEquation, AlignedJaxpr
from shardlab.analysis.scaling.loop_ranges import LOOP_RULES
from shardlab.analysis.scaling.range_rules import JAX_FUNCTIONS, RULES, Ranges
from shardlab.analysis.scaling.size_rules import SizeRules
from shardlab.analysis.scaling.value_range import (
    UNKNOWN,
    ValueRange,
    array_range,
    multiply,
    union,
)
from shardlab.findings.source import SourceLocation
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.rules.collectives import IDENTITY_COLLECTIVES

# In the worst case each addition loses half a unit in the last place. Half of the sum may be lost.
_MAX_LOST_SHARE = 0.5
_FIRST_OPERAND = frozenset({"broadcast_in_dim", "reshape", "sort"})
# Each element of the result is an element of an operand.
_SAME_ELEMENTS = frozenset(
    {
        *("reshape", "squeeze", "transpose", "slice", "rev", "copy", "copy_p", "broadcast_in_dim"),
        *("expand_dims", "concatenate", "stop_gradient", "optimization_barrier", "split", "sort"),
        *("reduce_max", "reduce_min", "pmax", "pmin", "all_gather", "all_gather_invariant"),
        *("all_to_all", "pbroadcast", "cummax", "cummin", "all_gather_reduced", "tile"),
    }
)
# Smooth functions, and generators of random numbers: no position is a special case to them.
_SMOOTH = frozenset(
    {
        *("exp", "exp2", "log", "log1p", "expm1", "sin", "cos", "tan", "tanh", "logistic", "sqrt"),
        *("rsqrt", "cbrt", "pow", "integer_pow", "erf", "erfc", "square", "atan2", "asin", "acos"),
        *("random_fold_in", "random_seed", "random_wrap", "random_unwrap", "threefry2x32"),
        *("random_split", "random_bits", "random_clone", "debug_callback", "debug_print"),
    }
)


@dataclasses.dataclass(frozen=True)
class RangeProblem:
    """A use of a device position, or a number, that the small meshes say nothing about."""

    kind: str  # "device_index" or "numbers"
    what: str
    source: SourceLocation | None


class RangeWalk:
    """One walk over an aligned program; `problems` has what it found."""

    def __init__(self, rules: SizeRules) -> None:
        self.rules = rules
        self.problems: dict[tuple[str, SourceLocation | None], RangeProblem] = {}
        self.n_device_uses = 0
        self.is_trial = False  # while the carries of a loop are not final

    def run(self, jaxpr: AlignedJaxpr, ins: Sequence[ValueRange]) -> Ranges:
        """Return the ranges of the outputs."""
        first = jaxpr.jaxprs[0]
        values: dict[Any, ValueRange] = dict(zip(first.invars, ins, strict=True))
        for number, var in enumerate(first.constvars):
            values[var] = array_range([consts[number] for consts in jaxpr.consts])

        def read(atoms: Sequence[Any]) -> ValueRange:
            if isinstance(atoms[0], _jax.Literal):
                return array_range([_jax.literal_value(atom) for atom in atoms])
            return values[atoms[0]]

        for equation in jaxpr.equations:
            operands = zip(*(eqn.invars for eqn in equation.eqns), strict=True)
            outs = self._evaluate(equation, [read(atoms) for atoms in operands])
            outvars = equation.eqns[0].outvars
            for var, out in zip(outvars, outs, strict=True):
                values[var] = self._check_type(equation, var.aval, out)
        outputs = zip(*(item.outvars for item in jaxpr.jaxprs), strict=True)
        return [read(atoms) for atoms in outputs]

    def report(self, kind: str, equation: AlignedEquation, what: str) -> None:
        if not self.is_trial:
            source = equation.source
            self.problems.setdefault((kind, source), RangeProblem(kind, what, source))

    def _evaluate(self, equation: AlignedEquation, ins: Ranges) -> Ranges:
        name = equation.name
        if any(value.from_device for value in ins):
            self.n_device_uses += not self.is_trial
        handler = RULES.get(name) or LOOP_RULES.get(name)
        if handler is not None:
            return handler(self, equation, ins)
        if called_jaxpr(name, equation.eqns[0].params) is not None or name == "shard_map":
            return self._call(equation, ins)
        n_outs = len(equation.eqns[0].outvars)
        if name in IDENTITY_COLLECTIVES:
            return ins[:n_outs]
        if name in _SAME_ELEMENTS:
            return [union(ins[:1] if name in _FIRST_OPERAND else ins)] * n_outs
        if any(value.from_device for value in ins) and name not in _SMOOTH:
            self.report(
                "device_index",
                equation,
                f"A device's position goes through '{name}', which may behave differently for "
                "positions that only the full mesh has.",
            )
        return [UNKNOWN] * n_outs

    def _call(self, equation: AlignedEquation, ins: Ranges) -> Ranges:
        body = next(bodies[0] for bodies in equation.bodies.values() if bodies)
        name, file, _ = _jax.function_location(body.jaxprs[0])
        if _jax.is_jax_file(file) and name in JAX_FUNCTIONS:
            return JAX_FUNCTIONS[name](self, equation, ins)
        return self.run(body, ins)

    def _check_type(self, equation: AlignedEquation, aval: Any, value: ValueRange) -> ValueRange:
        """Report a number that its dtype cannot hold."""
        dtype = getattr(aval, "dtype", None)
        if value.pairs is None or dtype is None or _jax.is_extended(dtype):
            return value
        low, high = min(value.lows or ()), max(value.highs or ())
        if jnp.issubdtype(dtype, jnp.integer):
            info = jnp.iinfo(dtype)
            if low < info.min or high > info.max:
                worst = high if high > info.max else low
                self.report(
                    "numbers",
                    equation,
                    f"A value can reach {worst:,} on the full mesh, and {dtype} ends at "
                    f"{info.max:,}.",
                )
                return value.without_bounds()
        elif jnp.issubdtype(dtype, jnp.floating) and value.from_device:
            exact = 2 ** (jnp.finfo(dtype).nmant + 1)
            if max(abs(low), abs(high)) > exact:
                self.report(
                    "numbers",
                    equation,
                    f"Positions up to {high:,} are not all exact in {dtype}: from {exact:,} on, "
                    "neighbors have the same number.",
                )
        return value

    # ------------------------------------------------------------------------------ sums

    def add_terms(
        self, equation: AlignedEquation, value: ValueRange, counts: Sequence[int]
    ) -> ValueRange:
        """Return the range of a sum of `counts` terms; report one that the full mesh breaks."""
        if len(set(counts)) > 1:
            aval = equation.eqns[0].invars[0].aval
            self.check_growing_sum(equation, aval.dtype, counts[0], value)
        return multiply(value, counts)

    def check_growing_sum(
        self, equation: AlignedEquation, dtype: Any, n_terms: int, value: ValueRange
    ) -> None:
        """Report a sum over more terms on a larger mesh that its dtype does not allow."""
        if jnp.issubdtype(dtype, jnp.integer) and value.pairs is None:
            self.report(
                "numbers",
                equation,
                f"A sum of {n_terms:,} numbers of type {dtype} whose size is not known may leave "
                "the type.",
            )
        if not jnp.issubdtype(dtype, jnp.inexact):
            return
        info = jnp.finfo(dtype)
        lost = n_terms * 2.0 ** -(info.nmant + 1)
        if lost > _MAX_LOST_SHARE:
            self.report(
                "numbers",
                equation,
                f"A sum of {n_terms:,} terms in {dtype} can lose {min(lost, 1):.0%} of its value "
                "by rounding, in the worst case.",
            )
        elif float(info.max) < 1e30:
            self.report(
                "numbers",
                equation,
                f"A sum of {n_terms:,} terms in {dtype} may exceed {float(info.max):,.0f}.",
            )
