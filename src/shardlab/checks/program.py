"""All checks that need no run: what was seen of a program -> findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardlab.checks.constraint_replicates import uneven_constraints
from shardlab.checks.deadlock import deadlocks
from shardlab.checks.loop_invariant import loop_invariants
from shardlab.checks.mixed_collectives import mixed_collectives
from shardlab.checks.no_communication import nothing_to_check
from shardlab.checks.ppermute_order import ppermute_orders
from shardlab.checks.psum_unvarying import sums_of_copies
from shardlab.checks.refused import refusals
from shardlab.checks.replicated import REPLICATED_BYTES, replicated
from shardlab.checks.sliced import gathers_then_slices, psums_then_slices
from shardlab.records.finding import Finding
from shardlab.records.observation import Observation
from shardlab.records.report import gravest_first

# Each looks at one question; one file each.
CHECKS: Sequence[Callable[[Observation], list[Finding]]] = (
    refusals,
    deadlocks,
    mixed_collectives,
    sums_of_copies,
    ppermute_orders,
    uneven_constraints,
    gathers_then_slices,
    psums_then_slices,
    loop_invariants,
    nothing_to_check,
)


def check_program(
    seen: Observation, *, replicated_bytes: int = REPLICATED_BYTES
) -> tuple[Finding, ...]:
    """Return what every check finds, gravest first; arrays count as large from that many bytes."""
    found = [found for check in CHECKS for found in check(seen)]
    return gravest_first([*found, *replicated(seen, replicated_bytes)])
