"""All checks that need no run: what was seen of a program -> findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardlab.checks.check_deadlock import deadlocks, mixed_collectives
from shardlab.checks.rejection_findings import refusals
from shardlab.checks.check_replicated_arrays import (
    REPLICATED_BYTES,
    replicated,
    sums_of_copies,
    uneven_constraints,
)
from shardlab.checks.check_wasted_communication import (
    gathers_then_slices,
    loop_invariants,
    nothing_to_check,
    ppermute_orders,
    psums_then_slices,
)
from shardlab.findings.finding import Finding
from shardlab.findings.report import most_severe_first
from shardlab.tracing.observation import Observation

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
    return most_severe_first([*found, *replicated(seen, replicated_bytes)])
