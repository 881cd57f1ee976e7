"""The value of an intermediate on each device, if it is known without running the program.

Evaluation goes backwards from the value: only what it is computed from is evaluated. That is cheap
for `axis_index("data") == 0`, and possible for what depends on arguments passed as arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab.simulator.interpreter import evaluate, shard_boundary
from shardlab.simulator.interpreter.stacked_array import StackedArray
from shardlab.tracing.jaxpr_walk import Block, Site

# Larger evaluations would take longer than a user waits for `trace`.
_MAX_EQUATIONS = 2000
_MAX_BYTES = 2**28


class UnknownValue(Exception):
    """A value that is not known before the program runs."""


@dataclasses.dataclass(frozen=True)
class Dependencies:
    """What a value depends on: program arguments by number, and what only a run provides."""

    arguments: frozenset[int] = frozenset()
    on_carry: bool = False  # of a loop
    on_effect: bool = False  # a callback or another effect

    @property
    def is_constant(self) -> bool:
        """Return whether it depends only on constants and the device's own index."""
        return not (self.arguments or self.on_carry or self.on_effect)


class WalkedProgram:
    """A walked program and its arguments; values are known for those that are arrays."""

    def __init__(
        self,
        closed: Any,
        sites: Sequence[Site],
        args: Sequence[Any] = (),
        shardings: Sequence[Any] = (),
    ) -> None:
        self.sites = sites
        self.jaxpr, consts = _jax.open_jaxpr(closed)
        self.arguments = args
        self.shardings = shardings  # of the arguments, then of the results
        self._known_arguments = [arg if _is_concrete_array(arg) else None for arg in args]
        self._top_consts = dict(zip(self.jaxpr.constvars, consts, strict=False))
        self._values: dict[tuple[Block, Any, bool], StackedArray] = {}
        self._n_evaluated = 0

    # -------------------------------------------------------------------------------- dependencies

    def dependencies(self, block: Block, atom: Any) -> Dependencies:
        """Return what a value depends on."""
        dependencies, visited, pending = Dependencies(), set(), [(block, atom)]
        while pending:
            block, atom = pending.pop()
            if isinstance(atom, _jax.Literal) or (block, atom) in visited:
                continue
            visited.add((block, atom))
            dependencies = self._add_dependency(dependencies, block, atom)
            pending += self.operands_of(block, atom)
        return dependencies

    def _add_dependency(self, dependencies: Dependencies, block: Block, atom: Any) -> Dependencies:
        site = block.defining_site(atom)
        if site is not None:
            has_effects = _has_effects(site)
            return (
                dataclasses.replace(dependencies, on_effect=True) if has_effects else dependencies
            )
        if block.caller_operand(atom) is not None or atom in block.jaxpr.constvars:
            return dependencies
        if block.outer is None:
            number = block.jaxpr.invars.index(atom)
            return dataclasses.replace(dependencies, arguments=dependencies.arguments | {number})
        return dataclasses.replace(dependencies, on_carry=True)

    def operands_of(self, block: Block, atom: Any) -> Iterator[tuple[Block, Any]]:
        """Yield the values from which a value is computed, one step back."""
        site = block.defining_site(atom)
        if site is not None:
            result = self._result_in_body(site, atom)
            if result is not None:
                yield result
            else:
                yield from ((block, operand) for operand in site.eqn.invars)
        elif block.outer is not None:
            outer = block.outer
            operand = block.caller_operand(atom)
            if operand is not None:
                yield outer.block, operand
            elif atom not in block.jaxpr.constvars:
                # A loop carry may depend on everything that goes into the loop.
                yield from ((outer.block, operand) for operand in outer.eqn.invars)

    def _result_in_body(self, site: Site, var: Any) -> tuple[Block, Any] | None:
        """Return the value inside a call or a shard_map that becomes `var`."""
        blocks = site.inner
        # A loop or a cond has no single value inside that becomes the output.
        if len(blocks) != 1 or site.name in ("scan", "while", "cond"):
            return None
        number = _output_number(site, var)
        return blocks[0], blocks[0].jaxpr.outvars[number]

    # ---------------------------------------------------------------------------------- evaluation

    def evaluate_value(
        self, block: Block, atom: Any, *, first_iteration: bool = False
    ) -> StackedArray:
        """Return a value on every device; of a loop carry, that of the first iteration if asked.

        Raises `UnknownValue` if it depends on unknown arguments or would take too long.
        """
        self._n_evaluated = 0
        try:
            return self._lookup(block, atom, first_iteration)
        except (UnknownValue, RecursionError):
            raise UnknownValue from None
        except Exception as error:  # a value that cannot be simulated is unknown
            raise UnknownValue(str(error)) from error

    def _lookup(self, block: Block, atom: Any, first_iteration: bool) -> StackedArray:
        if isinstance(atom, _jax.Literal):
            return StackedArray(_jax.literal_value(atom))
        key = (block, atom, first_iteration)
        if key not in self._values:
            self._values[key] = self._evaluate(block, atom, first_iteration)
        return self._values[key]

    def _evaluate(self, block: Block, atom: Any, first_iteration: bool) -> StackedArray:
        site = block.defining_site(atom)
        if site is not None:
            return self._evaluate_site(site, atom, first_iteration)
        if atom in block.jaxpr.constvars:
            return StackedArray(self._constant(block, atom))
        operand = block.caller_operand(atom)
        if operand is not None and block.outer is not None:
            full = self._lookup(block.outer.block, operand, first_iteration)
            return self._shard_input(block, atom, full)
        if block.outer is None:
            return self._argument(block.jaxpr.invars.index(atom))
        if first_iteration:
            return self._first_iteration_input(block, atom)
        raise UnknownValue

    def _evaluate_site(self, site: Site, var: Any, first_iteration: bool) -> StackedArray:
        result = self._result_in_body(site, var)
        if result is not None:
            shards = self._lookup(*result, first_iteration)
            return self._join_output(site, var, shards, result[0])
        # Per request, so that one large predicate does not use up the budget of the others.
        self._n_evaluated += 1
        if self._n_evaluated > _MAX_EQUATIONS or _has_effects(site):
            raise UnknownValue
        ins = [self._lookup(site.block, operand, first_iteration) for operand in site.eqn.invars]
        outs = evaluate.evaluate_equation(site.context.axes, site.eqn, ins)
        # All outputs of the equation, or the next one would evaluate it again.
        for out, value in zip(site.eqn.outvars, outs, strict=True):
            self._values[site.block, out, first_iteration] = value
        return self._values[site.block, var, first_iteration]

    def _argument(self, number: int) -> StackedArray:
        arguments = self._known_arguments
        array = arguments[number] if number < len(arguments) else None
        if array is None or math.prod(array.shape) * array.dtype.itemsize > _MAX_BYTES:
            raise UnknownValue
        return StackedArray(array)

    def _constant(self, block: Block, var: Any) -> Any:
        if block.outer is None:
            return self._top_consts[var]
        for body in _jax.inner_jaxprs(block.outer.eqn.params):
            jaxpr, consts = _jax.open_jaxpr(body)
            if jaxpr is block.jaxpr:
                return dict(zip(jaxpr.constvars, consts, strict=True))[var]
        raise UnknownValue

    def _shard_input(self, block: Block, var: Any, full: StackedArray) -> StackedArray:
        """Return what a body gets for an operand: in a shard_map one shard per device."""
        outer = block.outer
        if outer is None or outer.name != "shard_map":
            return full
        number = block.jaxpr.invars.index(var)
        return shard_boundary.shard_input(
            full, outer.eqn.params["in_specs"][number], block.context.axes
        )

    def _join_output(self, site: Site, var: Any, shards: StackedArray, body: Block) -> StackedArray:
        """Return what a call returns for a value of its body: of a shard_map the full array."""
        if site.name != "shard_map":
            return shards
        spec = site.eqn.params["out_specs"][_output_number(site, var)]
        newly_manual = frozenset(site.eqn.params["newly_manual_axes"])
        # An output that is partly reduced, or differs where it is declared replicated, has no
        # single value outside.
        if spec.unreduced or (set(shards.device_axes) & newly_manual) - shard_boundary.spec_axes(
            spec
        ):
            raise UnknownValue
        return shard_boundary.gather_output(shards, spec, body.context.axes)

    def _first_iteration_input(self, block: Block, var: Any) -> StackedArray:
        """Return what a loop body gets in its first iteration."""
        loop = block.outer
        assert loop is not None
        number = block.jaxpr.invars.index(var)
        if loop.name == "scan":
            n_consts, n_carry = _jax.scan_operand_counts(loop.eqn.params)
            operand = self._lookup(loop.block, loop.eqn.invars[number], True)
            return operand if number < n_consts + n_carry else _first_row(operand, loop)
        # A while loop has two jaxprs with different constants; the carry comes last in both.
        from_end = len(block.jaxpr.invars) - number
        return self._lookup(loop.block, loop.eqn.invars[-from_end], True)


def _output_number(site: Site, var: Any) -> int:
    return next(number for number, out in enumerate(site.eqn.outvars) if out is var)


def _first_row(xs: StackedArray, loop: Site) -> StackedArray:
    position = xs.position_of_local(0)
    row = -1 if loop.eqn.params["reverse"] else 0
    array = jax.numpy.take(xs.array, row, axis=position)
    # The dimension is gone, so device dimensions behind it move one to the front.
    return StackedArray(array, {name: p - (p > position) for name, p in xs.device_axes.items()})


def _has_effects(site: Site) -> bool:
    return "callback" in site.name or any(
        not isinstance(effect, _jax.NamedAxisEffect) for effect in site.eqn.effects
    )


def _is_concrete_array(value: Any) -> bool:
    is_array = isinstance(value, (np.ndarray, np.generic, jax.Array))
    return is_array and not isinstance(value, jax.core.Tracer)
