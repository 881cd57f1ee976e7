"""The pairs of wrong and right programs, by what is wrong in them."""

from __future__ import annotations

from pairs import (
    deadlocks,
    mixed,
    places,
    quiet,
    refused,
    replicas,
    scaled,
    silences,
    specs,
    waste,
)

MODULES = (
    deadlocks,
    mixed,
    replicas,
    scaled,
    places,
    quiet,
    specs,
    waste,
    refused,
    silences,
)
TABLES = [module.pair for module in MODULES]
WRONG = {name: case for table in TABLES for name, case in table.wrong_cases.items()}
RIGHT = {name: case for table in TABLES for name, case in table.right_cases.items()}
