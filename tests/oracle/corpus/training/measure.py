"""Checks programs of the corpus and counts what the findings say about their bugs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import shardlab
from shardlab.findings.report import Report
from training import Program

# A bug is found with its cause, without a cause, with a wrong one, or not at all.
OUTCOMES = ("right cause", "no cause", "wrong cause", "missed", "right", "false alarm")


@dataclass(frozen=True)
class Outcome:
    """What `check` says about one program, next to the truth."""

    program: Program
    outcome: str
    report: Report

    def __str__(self) -> str:
        findings = ", ".join(f"{item.code} {item.cause}".strip() for item in self.report.findings)
        return f"{self.program.name}: {self.outcome} ({findings or 'no findings'})"


def check_program(program: Program) -> Report:
    """Check a program as its author would: on its mesh, with a reference if the bug needs one."""
    module = program.load()
    needs_reference = program.bug is not None and program.bug.needs_reference
    options = {"reference": module.reference} if needs_reference else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return shardlab.check(module.step, *module.example_args(), mesh=module.MESH, **options)


def judge_report(program: Program, report: Report) -> str:
    """Return the outcome of a check."""
    findings = [item for item in report.findings if item.severity != "info"]
    if program.bug is None:
        return "false alarm" if findings else "right"
    errors = [item for item in findings if item.severity == "error"]
    if not errors:
        is_found = any(item.code == program.bug.code for item in findings)
        return "no cause" if is_found else "missed"
    # One finding with a wrong cause is enough to send its reader to the wrong place.
    causes = {item.cause for item in errors if item.cause}
    if causes - set(program.bug.causes) or any(item.code != program.bug.code for item in errors):
        return "wrong cause"
    return "right cause" if causes else "no cause"


def measure(programs: Iterable[Program]) -> list[Outcome]:
    return [
        Outcome(program, judge_report(program, report), report)
        for program, report in ((program, check_program(program)) for program in programs)
    ]


def outcome_table(outcomes: Iterable[Outcome]) -> str:
    """Return the counts by family, and in total, as a table.

    Every wrong program is found, or missed; every right one is right, or a false alarm.
    """
    by_family: dict[str, Counter[str]] = {}
    for item in outcomes:
        by_family.setdefault(item.program.family, Counter())[item.outcome] += 1
    total: Counter[str] = sum(by_family.values(), Counter())
    head = ("family", "wrong", "found", *OUTCOMES[:4], "right programs", "false alarm")
    rows = [head]
    for name, counts in (*by_family.items(), ("total", total)):
        n_found = sum(counts[outcome] for outcome in OUTCOMES[:3])
        cells = (n_found + counts["missed"], n_found, *(counts[o] for o in OUTCOMES[:4]))
        n_right = counts["right"] + counts["false alarm"]
        rows.append((name, *map(str, (*cells, n_right, counts["false alarm"]))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
