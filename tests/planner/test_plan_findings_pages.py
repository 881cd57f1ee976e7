"""Each finding about plans and rules has a page, and its examples print what it shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from shardlab.planner.findings.plan_finding_codes import PLAN_FINDING_CODES

FOLDER = Path(__file__).parent.parent.parent / "docs" / "findings"
# A program, and beneath it what it prints.
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def page(code):
    return (FOLDER / f"{code}.md").read_text("utf-8")


def pages():
    return {code: page(code) for code in PLAN_FINDING_CODES if (FOLDER / f"{code}.md").exists()}


def examples():
    for code, text in pages().items():
        for number, (source, output) in enumerate(EXAMPLE.findall(text)):
            yield pytest.param(source, output, id=f"{code}-{number}")


@pytest.mark.parametrize(("source", "output"), list(examples()))
def test_an_example_prints_what_the_page_shows(source, output):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "example.py", "exec"), {})
    assert printed.getvalue() == output


@pytest.mark.parametrize("code", PLAN_FINDING_CODES)
def test_a_page_shows_the_finding_and_then_a_plan_without_it(code):
    output = [text for _, text in EXAMPLE.findall(page(code))]
    finding = re.compile(rf"^(?:error|warning|info) \[{re.escape(code)}\]", re.MULTILINE)
    assert finding.search(output[0])
    assert not finding.search(output[-1])
    assert len(output) >= 2


@pytest.mark.parametrize("code", PLAN_FINDING_CODES)
def test_a_page_explains_the_finding_the_fix_and_when_it_is_intended(code):
    text = page(code)
    assert text.startswith(
        f"# {code}\n\n**{PLAN_FINDING_CODES[code].severity}**: {PLAN_FINDING_CODES[code].title}"
    )
    headings = HEADING.findall(text)
    assert {"On real devices", "What to do", "If it is intended"} <= set(headings)
