"""Sums over a mesh axis along which there is nothing but equal copies.

Makes the clue `sum_of_copies`. Its facts: `axes` (those along which the value is the same), `n`
(how many copies are added up), `over` (all axes of the psum), `shape`, `dtype`.

No clue for what is meant so: the backward pass, where JAX itself puts such sums; a constant, whose
sum counts devices; a mean, or another quotient in which the copies cancel; a flag that is only
compared with nought.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardlab import _jax
from shardlab.simulator.interpreter.rules.collectives import SUM_COLLECTIVES, collective_axes
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import Program
from shardlab.tracing.patterns.value_uses import Use, Uses

_COMPARISONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
_ON_THE_WAY = frozenset(
    {"convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "pvary", "pcast", "sqrt"}
)
# What keeps a divisor from being nought: max(count, 1), total + 1e-6.
_GUARDS = frozenset({"max", "add"})
# How far back a divisor is followed in search of a sum.
_MOST_STEPS = 40


def sums_of_copies(program: Program, uses: Uses) -> Iterator[ProgramPattern]:
    """Yield a clue for each psum that multiplies where a person may have meant to add up."""
    for site in program.sites:
        if site.name not in SUM_COLLECTIVES or site.phase != "forward":
            continue
        axes = _copied_over(site)
        if not axes or program.leaves(site.block, site.eqn.invars[0]).is_constant:
            continue
        n = site.place.axes.size(axes)
        if not _cancels(program, uses, site, frozenset(axes), n):
            aval = site.eqn.invars[0].aval
            facts = {
                "axes": axes,
                "n": n,
                "over": collective_axes(site.eqn.params),
                "shape": tuple(aval.shape),
                "dtype": str(aval.dtype),
            }
            yield ProgramPattern("sum_of_copies", site.source, facts)


def _copied_over(site: Site) -> tuple[str, ...]:
    if site.eqn.params.get("axis_index_groups") is not None:
        return ()
    axes = site.place.axes
    return tuple(
        n for n in axes.drop_size_one(collective_axes(site.eqn.params)) if n not in site.ins[0]
    )


def _cancels(program: Program, uses: Uses, site: Site, axes: frozenset[str], n: int) -> bool:
    readers = uses.of(site.block, site.eqn.outvars[0])
    if not readers:
        return False
    return all(_is_harmless(program, uses, use, axes, n) for use in readers)


def _is_harmless(program: Program, uses: Uses, use: Use, axes: frozenset[str], n: int) -> bool:
    site = use.site
    if site.name in _ON_THE_WAY:
        return _cancels(program, uses, site, axes, n)
    if len(site.eqn.invars) != 2:
        return False
    other = site.eqn.invars[1 - use.operand]
    if site.name in _GUARDS and _number(program, site.block, other) is not None:
        return _cancels(program, uses, site, axes, n)
    if site.name in _COMPARISONS:
        return _number(program, site.block, other) == 0
    if site.name == "div":
        divisor = _number(program, site.block, other) if use.operand == 0 else None
        is_mean = divisor is not None and divisor != 0 and divisor % n == 0
        return is_mean or _is_sum_too(site.block, other, axes)
    if site.name == "mul":
        factor = _number(program, site.block, other)
        return factor is not None and factor != 0 and bool(np.isclose((1 / factor) % n, 0))
    return False


def _number(program: Program, block: Block, atom: Any) -> float | None:
    """Return a scalar that is a constant of the program."""
    if isinstance(atom, _jax.Literal):
        return float(atom.val) if np.ndim(atom.val) == 0 else None
    if program.leaves(block, atom).is_constant and not atom.aval.shape and not block.varies(atom):
        try:
            return float(program.value(block, atom).array)
        except Exception:  # a key, or nothing that can be told: no number, then
            return None
    return None


def _is_sum_too(block: Block, atom: Any, axes: frozenset[str]) -> bool:
    """Say whether a value comes from a psum over the same axes, and so has the same factor."""
    todo, n_steps = [(block, atom)], 0
    while todo and n_steps < _MOST_STEPS:
        n_steps += 1
        block, atom = todo.pop()
        site = block.definition(atom)
        if site is None:
            continue
        if site.name in SUM_COLLECTIVES and axes <= set(collective_axes(site.eqn.params)):
            return True
        todo += [(site.block, operand) for operand in site.eqn.invars]
    return False
