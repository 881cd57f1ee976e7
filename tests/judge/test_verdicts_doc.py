"""The page about verdicts lists all of them with their labels, most severe first."""

import re
from pathlib import Path

from shardlab.judge.verdict import CAUSES, VERDICTS

PAGE = (Path(__file__).parents[2] / "docs" / "verdicts.md").read_text("utf-8")


def table_rows(heading):
    section = PAGE.split(heading)[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \| ([^|]*) \|", section, re.MULTILINE)


def test_every_verdict_is_on_the_page_with_its_label():
    assert table_rows("# Verdicts") == list(VERDICTS.items())


def test_every_cause_is_on_the_page():
    assert [name for name, _ in table_rows("## Causes")] == list(CAUSES)
