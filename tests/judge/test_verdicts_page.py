"""The page of verdicts names all of them, in the order in which they are shown."""

import re
from pathlib import Path

from shardlab.judge.verdict import CAUSES, VERDICTS

PAGE = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text("utf-8")


def first_cells(heading):
    section = PAGE.split(heading)[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`(\w+)`", row)]


def test_every_verdict_stands_on_the_page_the_most_telling_first():
    assert first_cells("# Verdicts") == list(VERDICTS)


def test_every_cause_stands_on_the_page():
    assert first_cells("## Causes") == list(CAUSES)
