"""The pairs of wrong and right programs, by what is wrong in them."""

from __future__ import annotations

from pairs import (
    accepted_by_jax,
    deadlocks,
    differing_replicas,
    mismatched,
    rejected,
    scaled,
    specs,
    suppressed,
    wasted,
    wrong_positions,
)

MODULES = (
    deadlocks,
    mismatched,
    differing_replicas,
    scaled,
    wrong_positions,
    accepted_by_jax,
    specs,
    wasted,
    rejected,
    suppressed,
)
TABLES = [module.pair for module in MODULES]
WRONG = {name: case for table in TABLES for name, case in table.wrong_cases.items()}
RIGHT = {name: case for table in TABLES for name, case in table.right_cases.items()}
