"""`audit.toml` beside a problem: mutants that are equivalent and inputs that cannot vary.

    [[equivalent]]
    mutant = "expected: norm -> abs(norm)"
    reason = "a norm is not negative"

    [[inputs]]
    argument = "specs"
    rule = "inputs.fixed"
    reason = "the specs are those of the mesh"

Each has a reason, and one that is not needed any more is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from shardlab._files.schema import check_fields, read_toml_file
from shardlab.catalogue.problem import Problem
from shardlab.catalogue.problem_schema import AUDIT, AUDIT_INPUT, AUDIT_MUTANT
from shardlab.errors import InvalidProblem

AUDIT_FILE = "audit.toml"
SOLUTION_PREFIX = "solution "


@dataclass(frozen=True)
class AuditExceptions:
    """The exceptions of one problem: names of mutants, pairs of an argument and a rule."""

    mutants: tuple[str, ...] = ()
    inputs: tuple[tuple[str, str], ...] = ()

    def lists_mutant(self, name: str) -> bool:
        return any(_matches(pattern, name) for pattern in self.mutants)

    def find_input(self, path: str, rule: str) -> tuple[str, str] | None:
        """Return the exception of an argument from a rule, None if there is none."""
        for pattern, excepted_rule in self.inputs:
            if excepted_rule == rule and _matches(pattern, path):
                return pattern, excepted_rule
        return None

    def unused_mutants(self, names: Collection[str], *, is_solution: bool) -> tuple[str, ...]:
        """Return the listed mutants of the reference, or of the solution, that do not survive."""
        return tuple(
            pattern
            for pattern in self.mutants
            if pattern.startswith(SOLUTION_PREFIX) == is_solution
            and not any(_matches(pattern, name) for name in names)
        )


def _matches(pattern: str, name: str) -> bool:
    """Return whether a name is the listed one; `*` stands for any text, brackets for themselves."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def load_exceptions(problem: Problem) -> AuditExceptions:
    """Return the exceptions of a problem; none without the file. Raises `InvalidProblem`."""
    file = problem.folder / AUDIT_FILE
    if not file.is_file():
        return AuditExceptions()
    table = read_toml_file(file, InvalidProblem, fix="write it as the page on problems says.")
    data: Any = check_fields(table, AUDIT, str(file), InvalidProblem)
    mutants = [
        check_fields(entry, AUDIT_MUTANT, str(file), InvalidProblem, "[[equivalent]]")["mutant"]
        for entry in data.get("equivalent", ())
    ]
    inputs = [
        check_fields(entry, AUDIT_INPUT, str(file), InvalidProblem, "[[inputs]]")
        for entry in data.get("inputs", ())
    ]
    return AuditExceptions(
        tuple(mutants), tuple((entry["argument"], entry["rule"]) for entry in inputs)
    )
