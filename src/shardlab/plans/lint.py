"""Rule lint: rules that match nothing, are shadowed, conflict, or replicate something large."""

from __future__ import annotations

from collections.abc import Sequence

from shardlab.layouts.mesh import Mesh
from shardlab.plans.matching import Placed
from shardlab.plans.model import Model
from shardlab.plans.rules import Rules
from shardlab.records.finding import Finding


def lint(model: Model, rules: Rules, placed: Sequence[Placed], mesh: Mesh) -> tuple[Finding, ...]:
    """Return what is wrong with the rules, each with the path and the bytes."""
    return ()
