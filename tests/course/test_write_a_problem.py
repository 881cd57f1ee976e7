"""docs/write-a-problem.md: its tables are those that the loader, the judge and the audit use."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from shardlab.catalogue import problem_schema
from shardlab.course.problem_lint import RULES
from shardlab.course.statement_page import HEADINGS
from shardlab.judge.cases import default_simulated_meshes, default_test_meshes
from shardlab.judge.verdict import CAUSES, VERDICTS
from shardlab.sandbox.process import ProcessLimits

ROOT = Path(__file__).parents[2]
DOC = (ROOT / "docs" / "write-a-problem.md").read_text("utf-8")
TABLES = [
    [line for line in table.splitlines() if line.startswith("| `")]
    for table in re.findall(r"(?:^\|.*\n)+", DOC, re.MULTILINE)
]


def rows(table):
    return [
        f"| `{key}`{' (required)' * field.is_required} | {field.expected} | {field.meaning} |"
        for key, field in table.items()
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("PROBLEM", "PART", "BUDGET", "LIMITS", "TRACKS", "TRACK"),
        *("AUDIT", "AUDIT_MUTANT", "AUDIT_INPUT"),
    ],
)
def test_the_page_has_every_key_and_no_other(name):
    assert rows(getattr(problem_schema, name)) in TABLES


def test_the_page_has_every_rule_and_no_other():
    assert [f"| `{name}` | {requirement} |" for name, requirement in RULES.items()] in TABLES


def test_the_page_names_every_code_and_cause_of_a_wrong_submission():
    # Their meanings are on the page about verdicts, which has a test of its own.
    text = " ".join(DOC.split())
    codes = [code for code in VERDICTS if code not in ("AC", "IE")]
    assert f"Codes: {', '.join(f'`{code}`' for code in codes)}." in text
    assert f"Causes: {', '.join(f'`{cause}`' for cause in CAUSES)}." in text
    assert "[Verdicts](verdicts.md)" in text


@pytest.mark.parametrize("axes", [("data",), ("data", "model")])
def test_the_page_has_the_default_meshes(axes):
    def table_cell(meshes):
        return " · ".join(f"`{mesh}`" for mesh in meshes)

    meshes = default_test_meshes(axes), default_simulated_meshes(axes)
    row = f"| {' | '.join(map(table_cell, meshes))} |"
    assert row in DOC


def test_the_page_names_the_headings_in_order():
    assert ", ".join(HEADINGS) in " ".join(DOC.split())


def test_a_limit_of_a_problem_is_one_of_a_sandboxed_process():
    assert set(problem_schema.LIMITS) <= {field.name for field in dataclasses.fields(ProcessLimits)}


def test_every_rule_is_used_and_every_fault_has_a_rule():
    sources = (ROOT / "src" / "shardlab" / "course").glob("*.py")
    used = {
        rule
        for path in sources
        # The docstring of `Fault` has one of them as an example.
        for rule in re.findall(r'Fault\(\s*rule="([\w.]+)"', path.read_text("utf-8"))
    }
    assert used == set(RULES)
