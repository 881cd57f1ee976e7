"""All checks that need no run: an observed program -> findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardlab.checks.check_deadlock import find_deadlocks, find_mismatched_collectives
from shardlab.checks.check_replicated_arrays import (
    REPLICATED_BYTES,
    find_indivisible_constraints,
    find_psums_of_replicated,
    find_replicated_arrays,
)
from shardlab.checks.check_wasted_communication import (
    find_all_gather_then_slice,
    find_loop_invariant_collectives,
    find_no_communication,
    find_ppermute_axis_order,
    find_psum_then_slice,
)
from shardlab.checks.rejection_findings import find_rejections
from shardlab.findings.finding import Finding
from shardlab.findings.report import most_severe_first
from shardlab.tracing.observation import Observation

# One function per question; findings of equal severity are reported in this order.
CHECKS: Sequence[Callable[[Observation], list[Finding]]] = (
    find_rejections,
    find_deadlocks,
    find_mismatched_collectives,
    find_psums_of_replicated,
    find_ppermute_axis_order,
    find_indivisible_constraints,
    find_all_gather_then_slice,
    find_psum_then_slice,
    find_loop_invariant_collectives,
    find_no_communication,
)


def check_program(
    observation: Observation, *, replicated_bytes: int = REPLICATED_BYTES
) -> tuple[Finding, ...]:
    """Return the findings of all checks, most severe first.

    Replicated arrays are reported from `replicated_bytes` on.
    """
    findings = [finding for check in CHECKS for finding in check(observation)]
    # Separate from CHECKS because it takes the limit of the configuration.
    findings += find_replicated_arrays(observation, replicated_bytes)
    return most_severe_first(findings)
