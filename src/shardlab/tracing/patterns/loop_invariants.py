"""Collectives in a loop that send the same values in every iteration.

Finds the pattern `loop_invariant_collective`. Facts: `op`, `axes`, `payload_bytes`, `wire_bytes`,
`shape`, `dtype`, `loop` (the location of the loop), `kind` (scan or while), `length` (None for a
while loop).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardlab import _jax
from shardlab.tracing.collective_calls import collective_call, is_collective_site
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import WalkedProgram


def find_loop_invariants(program: WalkedProgram) -> Iterator[ProgramPattern]:
    """Yield a pattern for each collective in a loop that does not depend on the iteration."""
    for site in program.sites:
        if not is_collective_site(site) or site.phase != "forward" or not site.context.within:
            continue
        # The innermost scope: moving a call out of one loop is the smallest change.
        scope = site.context.within[-1]
        # A collective under a cond may never be called; before the loop it always would be.
        if scope.kind == "cond" or scope.length == 1 or _depends_on_iteration(program, site):
            continue
        call = collective_call(site)
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
            yield ProgramPattern("loop_invariant_collective", site.source, facts)


def _depends_on_iteration(program: WalkedProgram, site: Site) -> bool:
    """Return whether an operand is computed from what the innermost loop changes."""
    depth = len(site.context.within)
    pending, visited = [(site.block, atom) for atom in site.eqn.invars], set()
    while pending:
        block, atom = pending.pop()
        if isinstance(atom, _jax.Literal) or (block, atom) in visited:
            continue
        visited.add((block, atom))
        if len(block.context.within) < depth:
            continue  # computed outside the loop
        if _is_changing_input(block, atom, depth) or _is_callback_result(block, atom):
            return True
        pending += program.operands_of(block, atom)
    return False


def _is_changing_input(block: Block, atom: Any, depth: int) -> bool:
    """Return whether `atom` is an input of the loop body that may differ between iterations."""
    outer = block.outer
    is_body = outer is not None and len(outer.context.within) < depth
    if not is_body or block.defining_site(atom) is not None:
        return False
    if block.caller_operand(atom) is not None or atom in block.jaxpr.constvars:
        return False
    return not _is_unchanged_carry(block, atom)


def _is_unchanged_carry(block: Block, var: Any) -> bool:
    """Return whether the body returns a carry as it got it."""
    outer, body = block.outer, block.jaxpr
    assert outer is not None
    if outer.name == "while":
        # The condition and the body have different constants; the carry comes last in both.
        body = _jax.open_jaxpr(outer.eqn.params["body_jaxpr"])[0]
        from_end = len(block.jaxpr.invars) - block.jaxpr.invars.index(var)
        return body.invars[-from_end] is body.outvars[-from_end]
    n_consts, n_carry = _jax.scan_operand_counts(outer.eqn.params)
    position = body.invars.index(var) - n_consts
    return position < n_carry and body.outvars[position] is var


def _is_callback_result(block: Block, atom: Any) -> bool:
    site = block.defining_site(atom)
    return site is not None and "callback" in site.name
