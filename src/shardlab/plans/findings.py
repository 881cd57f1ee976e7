"""Findings about a plan: does it fit, what is replicated, what does not divide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardlab.plans.asked import Asked
from shardlab.records.finding import Finding
from shardlab.records.plan import Plan


@dataclass(frozen=True)
class Limits:
    """From where on something is worth a word."""

    replicated_bytes: int = 64 * 2**20  # of one tensor, on each device


def plan_findings(
    plan: Plan, asked: Asked, again: Callable[[Asked], Plan], limits: Limits | None = None
) -> tuple[Finding, ...]:
    """Return what a person should know about a plan before they book the devices.

    `again` plans the same question with other choices, to find what would make it fit.
    """
    return ()
