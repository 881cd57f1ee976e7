"""What a value inside of a program is on each device, where that can be known without a run.

Backwards from the value: what it is computed from is evaluated, and nothing else. That is cheap for
`axis_index("data") == 0`, and possible for what rests on arguments that were given as arrays.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab.simulator.interpreter import evaluate as simulate
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.stacked_array import StackedArray
from shardlab.tracing.jaxpr_walk import Block, Site

# Beyond these an answer would take longer than a person waits for it.
_MOST_EQUATIONS = 2000
_MOST_BYTES = 2**28


class NotKnown(Exception):
    """A value that nobody can tell before the program runs."""


@dataclasses.dataclass(frozen=True)
class Leaves:
    """What a value rests on: numbers of program arguments, and things that only a run gives."""

    arguments: frozenset[int] = frozenset()
    in_turns: bool = False  # on what a loop carries from turn to turn
    elsewhere: bool = False  # on a callback or another effect

    @property
    def is_constant(self) -> bool:
        """Say whether it rests on nothing but constants and the device's own coordinates."""
        return not (self.arguments or self.in_turns or self.elsewhere)


class Program:
    """A walked program, and the arguments it was given as far as they are arrays."""

    def __init__(
        self,
        closed: Any,
        sites: Sequence[Site],
        args: Sequence[Any] = (),
        shardings: Sequence[Any] = (),
    ) -> None:
        self.sites = sites
        self.jaxpr, consts = _jax.open_jaxpr(closed)
        self.given = args
        self.shardings = shardings  # of the arguments, then of the results
        self.args = [arg if _is_array(arg) else None for arg in args]
        self._top_consts = dict(zip(self.jaxpr.constvars, consts, strict=False))
        self._known: dict[tuple[Block, Any, bool], StackedArray] = {}
        self._n_evaluated = 0

    # ----------------------------------------------------------------------------- what it rests on

    def leaves(self, block: Block, atom: Any) -> Leaves:
        """Return what a value rests on."""
        found, seen, todo = Leaves(), set(), [(block, atom)]
        while todo:
            block, atom = todo.pop()
            if isinstance(atom, _jax.Literal) or (block, atom) in seen:
                continue
            seen.add((block, atom))
            found = self._with_leaf(found, block, atom)
            todo += self.makers(block, atom)
        return found

    def _with_leaf(self, found: Leaves, block: Block, atom: Any) -> Leaves:
        site = block.made(atom)
        if site is not None:
            return dataclasses.replace(found, elsewhere=True) if _has_effects(site) else found
        if block.passed(atom) is not None or atom in block.jaxpr.constvars:
            return found
        if block.outer is None:
            number = block.jaxpr.invars.index(atom)
            return dataclasses.replace(found, arguments=found.arguments | {number})
        return dataclasses.replace(found, in_turns=True)

    def makers(self, block: Block, atom: Any) -> Iterator[tuple[Block, Any]]:
        """Yield what a value is made of, one step back."""
        site = block.made(atom)
        if site is not None:
            inner = self._result(site, atom)
            if inner is not None:
                yield inner
            else:
                yield from ((block, operand) for operand in site.eqn.invars)
        elif block.outer is not None:
            outer = block.outer
            passed = block.passed(atom)
            if passed is not None:
                yield outer.block, passed
            elif atom not in block.jaxpr.constvars:
                # What a loop carries rests on all that goes into the loop.
                yield from ((outer.block, operand) for operand in outer.eqn.invars)

    def _result(self, site: Site, var: Any) -> tuple[Block, Any] | None:
        """Return the value inside of a call or a shard_map that becomes `var`."""
        blocks = site.inner
        if len(blocks) != 1 or site.name in ("scan", "while", "cond"):
            return None
        number = next(i for i, out in enumerate(site.eqn.outvars) if out is var)
        return blocks[0], blocks[0].jaxpr.outvars[number]

    # ---------------------------------------------------------------------------------- what it is

    def value(self, block: Block, atom: Any, *, first_turn: bool = False) -> StackedArray:
        """Return a value on every device; of a loop's carry, that of the first turn if asked for.

        Raises NotKnown where it rests on what was not given, or would take too long.
        """
        self._n_evaluated = 0
        try:
            return self._value(block, atom, first_turn)
        except (NotKnown, RecursionError):
            raise NotKnown from None
        except Exception as error:  # a simulation that fails is a value not known
            raise NotKnown(str(error)) from error

    def _value(self, block: Block, atom: Any, first_turn: bool) -> StackedArray:
        if isinstance(atom, _jax.Literal):
            return StackedArray(_jax.literal_value(atom))
        key = (block, atom, first_turn)
        if key not in self._known:
            self._known[key] = self._found(block, atom, first_turn)
        return self._known[key]

    def _found(self, block: Block, atom: Any, first_turn: bool) -> StackedArray:
        site = block.made(atom)
        if site is not None:
            return self._made(site, atom, first_turn)
        if atom in block.jaxpr.constvars:
            return StackedArray(self._constant(block, atom))
        passed = block.passed(atom)
        if passed is not None and block.outer is not None:
            whole = self._value(block.outer.block, passed, first_turn)
            return self._cut(block, atom, whole)
        if block.outer is None:
            return self._argument(block.jaxpr.invars.index(atom))
        if first_turn:
            return self._first(block, atom)
        raise NotKnown

    def _made(self, site: Site, var: Any, first_turn: bool) -> StackedArray:
        inner = self._result(site, var)
        if inner is not None:
            shards = self._value(*inner, first_turn)
            return self._joined(site, var, shards, inner[0])
        self._n_evaluated += 1
        if self._n_evaluated > _MOST_EQUATIONS or _has_effects(site):
            raise NotKnown
        ins = [self._value(site.block, operand, first_turn) for operand in site.eqn.invars]
        outs = simulate.evaluate_equation(site.place.axes, site.eqn, ins)
        for out, value in zip(site.eqn.outvars, outs, strict=True):
            self._known[site.block, out, first_turn] = value
        return self._known[site.block, var, first_turn]

    def _argument(self, number: int) -> StackedArray:
        array = self.args[number] if number < len(self.args) else None
        if array is None or math.prod(array.shape) * array.dtype.itemsize > _MOST_BYTES:
            raise NotKnown
        return StackedArray(array)

    def _constant(self, block: Block, var: Any) -> Any:
        if block.outer is None:
            return self._top_consts[var]
        for body in _jax.inner_jaxprs(block.outer.eqn.params):
            jaxpr, consts = _jax.open_jaxpr(body)
            if jaxpr is block.jaxpr:
                return dict(zip(jaxpr.constvars, consts, strict=True))[var]
        raise NotKnown

    def _cut(self, block: Block, var: Any, whole: StackedArray) -> StackedArray:
        outer = block.outer
        if outer is None or outer.name != "shard_map":
            return whole
        number = block.jaxpr.invars.index(var)
        return boundary.shard_input(whole, outer.eqn.params["in_specs"][number], block.place.axes)

    def _joined(self, site: Site, var: Any, shards: StackedArray, inner: Block) -> StackedArray:
        if site.name != "shard_map":
            return shards
        number = next(i for i, out in enumerate(site.eqn.outvars) if out is var)
        spec = site.eqn.params["out_specs"][number]
        newly = frozenset(site.eqn.params["newly_manual_axes"])
        if spec.unreduced or (set(shards.device_axes) & newly) - boundary.spec_axes(spec):
            raise NotKnown
        return boundary.gather_output(shards, spec, inner.place.axes)

    def _first(self, block: Block, var: Any) -> StackedArray:
        """Return what a loop's body is given in its first turn."""
        loop = block.outer
        assert loop is not None
        number = block.jaxpr.invars.index(var)
        if loop.name == "scan":
            n_consts, n_carry = _jax.scan_operand_counts(loop.eqn.params)
            whole = self._value(loop.block, loop.eqn.invars[number], True)
            return whole if number < n_consts + n_carry else _first_row(whole, loop)
        # A while has two jaxprs, each with constants of its own; the carry comes last in both.
        from_end = len(block.jaxpr.invars) - number
        return self._value(loop.block, loop.eqn.invars[-from_end], True)


def _first_row(xs: StackedArray, loop: Site) -> StackedArray:
    position = xs.position_of_local(0)
    row = -1 if loop.eqn.params["reverse"] else 0
    array = jax.numpy.take(xs.array, row, axis=position)
    return StackedArray(array, {n: p - (p > position) for n, p in xs.device_axes.items()})


def _has_effects(site: Site) -> bool:
    return "callback" in site.name or any(
        not isinstance(effect, _jax.NamedAxisEffect) for effect in site.eqn.effects
    )


def _is_array(value: Any) -> bool:
    is_array = isinstance(value, (np.ndarray, np.generic, jax.Array))
    return is_array and not isinstance(value, jax.core.Tracer)
