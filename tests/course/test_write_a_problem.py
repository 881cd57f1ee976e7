"""docs/write-a-problem.md: its tables are those that the loader, the judge and the audit use."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from shardlab.catalogue import problem_schema as settings
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
        f"| `{key}`{' (required)' if each.is_required else ''} | {each.wanted} | {each.meaning} |"
        for key, each in table.items()
    ]


@pytest.mark.parametrize("name", ["PROBLEM", "PART", "BUDGET", "LIMITS", "TRACKS", "TRACK"])
def test_the_page_has_every_key_and_no_other(name):
    assert rows(getattr(settings, name)) in TABLES


@pytest.mark.parametrize("table", [VERDICTS, CAUSES, RULES], ids=["codes", "causes", "rules"])
def test_the_page_has_every_name_with_its_meaning_and_no_other(table):
    assert [f"| `{name}` | {meaning} |" for name, meaning in table.items()] in TABLES


@pytest.mark.parametrize("axes", [("data",), ("data", "model")])
def test_the_page_has_the_ladder_as_it_is(axes):
    def shown(meshes):
        return " · ".join(f"`{mesh}`" for mesh in meshes)

    assert (
        f"| {shown(default_test_meshes(axes))} | {shown(default_simulated_meshes(axes))} |" in DOC
    )


def test_the_page_names_the_headings_in_order():
    assert ", ".join(HEADINGS) in " ".join(DOC.split())


def test_a_limit_of_a_problem_is_one_of_a_guest():
    assert set(settings.LIMITS) <= {field.name for field in dataclasses.fields(ProcessLimits)}


def test_every_rule_is_used_and_every_fault_has_a_rule():
    sources = (ROOT / "src" / "shardlab" / "catalogue").glob("*.py")
    used = {
        rule
        for path in sources
        if path.name != "fault.py"
        for rule in re.findall(r'Fault\(\s*"([\w.]+)"', path.read_text("utf-8"))
    }
    assert used == set(RULES)
