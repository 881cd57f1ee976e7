"""All checks that need no run: what was seen of a program -> findings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardlab.checks.deadlock import deadlocks
from shardlab.checks.mixed_collectives import mixed_collectives
from shardlab.records.finding import Finding
from shardlab.records.observation import Observation
from shardlab.records.report import gravest_first

# Each looks at one question; one file each.
CHECKS: Sequence[Callable[[Observation], list[Finding]]] = (
    deadlocks,
    mixed_collectives,
)


def check_program(seen: Observation) -> tuple[Finding, ...]:
    """Return what every check finds, gravest first."""
    return gravest_first(found for check in CHECKS for found in check(seen))
