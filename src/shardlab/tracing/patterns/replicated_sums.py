"""psums over a mesh axis along which the operand is replicated.

Finds the pattern `psum_of_replicated`. Facts: `axes` (those along which the value is replicated),
`n` (how many replicas are summed), `over` (all axes of the psum), `shape`, `dtype`.

Not reported, because it is intended: the backward pass, where JAX itself inserts such sums; a
constant, whose sum counts devices; a mean, or another quotient in which the factor cancels; a flag
that is only compared with zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from shardlab import _jax
from shardlab.simulator.interpreter.rules.collectives import SUM_COLLECTIVES, collective_axes
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import WalkedProgram
from shardlab.tracing.patterns.value_uses import Reader, ReaderIndex

_COMPARISONS = frozenset({"gt", "ge", "lt", "le", "eq", "ne"})
_KEEPS_FACTOR = frozenset(
    {"convert_element_type", "reshape", "squeeze", "broadcast_in_dim", "pvary", "pcast", "sqrt"}
)
# These keep a divisor away from zero: max(count, 1), total + 1e-6.
_DIVISOR_GUARDS = frozenset({"max", "add"})
# How far back a divisor is followed in search of a psum.
_MAX_STEPS = 40


def find_psums_of_replicated(
    program: WalkedProgram, readers: ReaderIndex
) -> Iterator[ProgramPattern]:
    """Yield a pattern for each psum that multiplies by the number of replicas."""
    for site in program.sites:
        # In the backward pass JAX itself inserts sums of replicated cotangents.
        if site.name not in SUM_COLLECTIVES or site.phase != "forward":
            continue
        axes = _replicated_axes(site)
        if not axes or program.dependencies(site.block, site.eqn.invars[0]).is_constant:
            continue
        n_replicas = site.context.axes.size(axes)
        if not _factor_cancels(program, readers, site, frozenset(axes), n_replicas):
            aval = site.eqn.invars[0].aval
            facts = {
                "axes": axes,
                "n": n_replicas,
                "over": collective_axes(site.eqn.params),
                "shape": tuple(aval.shape),
                "dtype": str(aval.dtype),
            }
            yield ProgramPattern("psum_of_replicated", site.source, facts)


def _replicated_axes(site: Site) -> tuple[str, ...]:
    if site.eqn.params.get("axis_index_groups") is not None:
        return ()
    axes = site.context.axes.drop_size_one(collective_axes(site.eqn.params))
    return tuple(name for name in axes if name not in site.ins[0])


def _factor_cancels(
    program: WalkedProgram, readers: ReaderIndex, site: Site, axes: frozenset[str], n: int
) -> bool:
    """Return whether every use of a result is unaffected by the factor n."""
    uses = readers.find_readers(site.block, site.eqn.outvars[0])
    if not uses:
        return False
    return all(_is_harmless(program, readers, use, axes, n) for use in uses)


def _is_harmless(
    program: WalkedProgram, readers: ReaderIndex, use: Reader, axes: frozenset[str], n: int
) -> bool:
    site = use.site
    if site.name in _KEEPS_FACTOR:
        return _factor_cancels(program, readers, site, axes, n)
    if len(site.eqn.invars) != 2:
        return False
    operand = site.eqn.invars[1 - use.operand]
    if site.name in _DIVISOR_GUARDS and _constant_number(program, site.block, operand) is not None:
        return _factor_cancels(program, readers, site, axes, n)
    # psum(flag) > 0 asks whether any device has it set; a factor does not change the result.
    if site.name in _COMPARISONS:
        return _constant_number(program, site.block, operand) == 0
    if site.name == "div":
        divisor = _constant_number(program, site.block, operand) if use.operand == 0 else None
        # psum(x) / size: dividing by a multiple of n is a mean over devices.
        is_mean = divisor is not None and divisor != 0 and divisor % n == 0
        return is_mean or _has_same_factor(site.block, operand, axes)
    if site.name == "mul":
        factor = _constant_number(program, site.block, operand)
        return factor is not None and factor != 0 and bool(np.isclose((1 / factor) % n, 0))
    return False


def _constant_number(program: WalkedProgram, block: Block, atom: Any) -> float | None:
    """Return a scalar that is a constant of the program."""
    if isinstance(atom, _jax.Literal):
        return float(atom.val) if np.ndim(atom.val) == 0 else None
    is_constant = program.dependencies(block, atom).is_constant
    if is_constant and not atom.aval.shape and not block.varying_axes(atom):
        try:
            return float(program.evaluate_value(block, atom).array)
        except Exception:  # a key, or a value that is unknown before the run
            return None
    return None


def _has_same_factor(block: Block, atom: Any, axes: frozenset[str]) -> bool:
    """Return whether a value comes from a psum over the same axes, so that the factor cancels."""
    pending, n_steps = [(block, atom)], 0
    while pending and n_steps < _MAX_STEPS:
        n_steps += 1
        block, atom = pending.pop()
        site = block.find_definition(atom)
        if site is None:
            continue
        if site.name in SUM_COLLECTIVES and axes <= set(collective_axes(site.eqn.params)):
            return True
        pending += [(site.block, operand) for operand in site.eqn.invars]
    return False
