"""Collectives in a loop that send the same in every turn.

Makes the clue `same_each_turn`. Its facts: `op`, `axes`, `payload_bytes`, `wire_bytes`, `shape`,
`dtype`, `loop` (the Source of the loop), `kind` (scan or while), `length` (None for a while).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardlab import _jax
from shardlab.tracing.collective_calls import call_at, communicates
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import Program


def same_each_turn(program: Program) -> Iterator[ProgramPattern]:
    """Yield a clue for each collective that stands in a loop and does not rest on its turns."""
    for site in program.sites:
        if not communicates(site) or site.phase != "forward" or not site.place.within:
            continue
        scope = site.place.within[-1]
        # Under a cond it may not be called at all, and moved out it always would be.
        if scope.kind == "cond" or scope.length == 1 or _rests_on_turns(program, site):
            continue
        call = call_at(site)
        if call.wire_bytes:
            facts = {
                "op": call.op,
                "axes": call.mesh_axes,
                "payload_bytes": call.payload_bytes,
                "wire_bytes": call.wire_bytes,
                "shape": call.shape,
                "dtype": call.dtype,
                "loop": scope.source,
                "kind": scope.kind,
                "length": scope.length,
            }
            yield ProgramPattern("same_each_turn", site.source, facts)


def _rests_on_turns(program: Program, site: Site) -> bool:
    """Say whether an operand is made from what the innermost loop changes from turn to turn."""
    depth = len(site.place.within)
    todo, seen = [(site.block, atom) for atom in site.eqn.invars], set()
    while todo:
        block, atom = todo.pop()
        if isinstance(atom, _jax.Literal) or (block, atom) in seen:
            continue
        seen.add((block, atom))
        if len(block.place.within) < depth:
            continue  # made outside of the loop
        if _is_turned(block, atom, depth) or _has_effect(block, atom):
            return True
        todo += program.makers(block, atom)
    return False


def _is_turned(block: Block, atom: Any, depth: int) -> bool:
    """Say whether an input of the loop's body may differ from turn to turn."""
    outer = block.outer
    is_body = outer is not None and len(outer.place.within) < depth
    if not is_body or block.made(atom) is not None or block.passed(atom) is not None:
        return False
    if atom in block.jaxpr.constvars:
        return False
    return not _is_handed_on(block, atom)


def _is_handed_on(block: Block, var: Any) -> bool:
    """Say whether a carry leaves each turn as it came."""
    outer, inner = block.outer, block.jaxpr
    assert outer is not None
    if outer.name == "while":
        inner = _jax.open_jaxpr(outer.eqn.params["body_jaxpr"])[0]
        from_end = len(block.jaxpr.invars) - block.jaxpr.invars.index(var)
        return inner.invars[-from_end] is inner.outvars[-from_end]
    n_consts, n_carry = _jax.scan_operand_counts(outer.eqn.params)
    at = inner.invars.index(var) - n_consts
    return at < n_carry and inner.outvars[at] is var


def _has_effect(block: Block, atom: Any) -> bool:
    site = block.made(atom)
    return site is not None and "callback" in site.name
