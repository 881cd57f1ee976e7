"""Each finding has a page, and its examples print what the page shows."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.checks.cause_text import FIXES
from shardlab.checks.check_codes import CODES
from shardlab.planner.findings.plan_finding_codes import PLAN_FINDING_CODES

FOLDER = Path(__file__).parent.parent / "docs" / "findings"
ALL_PAGES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.*.md"))}
# Pages about plans have their own tests in tests/planner.
PAGES = {code: page for code, page in ALL_PAGES.items() if code not in PLAN_FINDING_CODES}
# A program, followed by what it prints.
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)


# The page shows what JAX 0.10 does; newer versions reject the program, and the report says so.
REJECTS_ORDERS = hasattr(jax.config, "jax_raise_on_ppermute_sort_diff")


def examples():
    for code, page in PAGES.items():
        for number, (source, output) in enumerate(EXAMPLE.findall(page)):
            yield pytest.param(code, source, output, id=f"{code}-{number}")


def run(source):
    """Return what a program prints, and the reports that its calls of `check` return."""
    reports = []

    def check(*args, **options):
        reports.append(shardlab.check(*args, **options))
        return reports[-1]

    # Reports quote lines of this file name, which exists in the cache only.
    linecache.cache["example.py"] = (len(source), None, source.splitlines(True), "example.py")
    names = {"jax": jax, "jnp": jnp, "lax": lax, "P": P, "shardlab": type("", (), {"check": check})}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "example.py", "exec"), names)
    return printed.getvalue(), reports


@pytest.mark.parametrize(("code", "source", "output"), list(examples()))
def test_an_example_prints_what_the_page_shows(code, source, output):
    printed, (report,) = run(source)
    if not (code == "hazard.ppermute_axis_order" and REJECTS_ORDERS):
        assert printed == output
    if report.findings:
        assert code in report.codes
        others = {"hazard.psum_of_replicated"} if code == "ignore.invalid" else set()
        assert set(report.codes) - {code} == others


@pytest.mark.parametrize("code", CODES)
def test_a_page_shows_a_failing_program_and_then_one_that_passes(code):
    reports = [output for _, output in EXAMPLE.findall(PAGES[code])]
    assert len(reports) >= 2
    assert len(reports) % 2 == 0
    for failing, passing in zip(reports[::2], reports[1::2], strict=True):
        assert f"{CODES[code].severity} [{code}]" in failing
        assert passing.splitlines()[-1].endswith("nothing found")


@pytest.mark.parametrize("code", CODES)
def test_a_page_explains_the_finding_and_how_to_fix_or_suppress_it(code):
    page = PAGES[code]
    assert page.startswith(f"# {code}\n")
    assert CODES[code].title in " ".join(page.split())
    headings = [text for _, text in HEADING.findall(page)]
    assert "On real devices" in headings
    assert "If it is intended" in headings
    if code not in NOT_SUPPRESSIBLE:
        assert f"# shardlab: ignore[{code}]" in page


# JAX rejects these programs, or they are no mistake: there is nothing to suppress.
NOT_SUPPRESSIBLE = {
    *(code for code in CODES if code.startswith("spec.")),
    "jax.rejected",
    "program.no_communication",
    "ignore.invalid",
}


def test_every_code_has_a_page_and_every_page_a_code():
    assert set(ALL_PAGES) == {*CODES, *PLAN_FINDING_CODES}


def test_the_index_lists_every_page_with_its_severity_and_title():
    index = (FOLDER / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| \[`([\w.]+)`\]\(\1\.md\) \| (\w+) \| (.*) \|$", index, re.MULTILINE)
    kinds = {**CODES, **PLAN_FINDING_CODES}
    assert sorted(rows) == sorted((code, kind.severity, kind.title) for code, kind in kinds.items())


def test_every_cause_of_mesh_dependence_has_a_section():
    headings = {text.strip("`") for _, text in HEADING.findall(PAGES["hazard.mesh_dependent"])}
    assert {cause for cause in FIXES if cause} <= headings


def test_links_between_pages_resolve():
    for path in FOLDER.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
