"""A problem's page in the terminal: nothing lost, nothing given away, no line too wide."""

from __future__ import annotations

import re

import pytest

from shardlab.catalogue.tracks import load_catalogue
from shardlab.course.statement_text import parse_layout_line, statement_rich, statement_text
from shardlab.errors import LabError
from shardlab.sharding.layout import layout


def test_words_are_folded_and_items_hang():
    page = "- one two `three four` five\n  six\n2. seven\n"
    assert statement_text(page, 22).splitlines() == [
        "- one two three four",
        "  five six",
        "2. seven",
    ]


def test_code_is_as_it_is_also_where_it_is_wide():
    code = f"x = {'1 + ' * 40}1"
    assert f"    {code}" in statement_text(f"Words.\n\n```python\n{code}\n\n  y\n```\n", 40)
    assert "\n\n      y" in statement_text(f"```python\n{code}\n\n  y\n```\n", 40)


def test_short_code_stays_on_one_line_and_long_code_is_set_off_on_both():
    assert statement_text("twelve words `b c d e f`", 20) == "twelve words\nb c d e f"
    long = "`" + "word " * 10 + "end` tail"
    shown = statement_rich(long, 20)
    assert shown.plain.replace("\n", " ").split() == [*["word"] * 10, "end", "tail"]
    inked = "".join(shown.plain[span.start : span.end] for span in shown.spans)
    assert "end" in inked
    assert "tail" not in inked


def test_stars_are_emphasis_in_words_and_powers_in_code():
    page = "The *same* **sum**: `((x @ w - y) ** 2)` of **`a**b`**.\n\n| *n* | `a**n` |\n"
    shown = statement_text(page)
    assert shown.splitlines()[0] == "The same sum: ((x @ w - y) ** 2) of a**b."
    assert shown.splitlines()[2].split() == ["n", "a**n"]


def test_tables_stand_in_columns():
    page = "| entry | means |\n|---|---|\n| `None` | whole |\n"
    assert [line.split() for line in statement_text(page).splitlines()] == [
        ["entry", "means"],
        ["-----", "-----"],
        ["None", "whole"],
    ]


def test_a_table_wraps_in_its_columns():
    row = "| `('data', 'model')` | divided by both sizes, 2 and 4 |"
    page = f"| entry | means |\n|---|---|\n{row}\n"
    assert statement_text(page, 36).splitlines() == [
        "    entry            means",
        "    ---------------  ---------------",
        "    ('data',         divided by both",
        "    'model')         sizes, 2 and 4",
    ]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("slug", load_catalogue().slugs)
def test_text_and_tables_of_every_problem_fit_the_terminal(slug, width):
    page = load_catalogue().load_problem(slug).page
    text = re.sub(r"^```.*?^```", "", page, flags=re.DOTALL | re.MULTILINE)
    assert max(map(len, statement_text(text, width).splitlines())) <= width


def test_the_proof_of_a_pitfall_is_left_out_and_other_links_keep_their_words():
    page = "- Not so\n  ([name](wrong/name.py)). See [this](https://example.org/a_b)."
    assert statement_text(page) == "- Not so. See this."


def test_a_layout_line_is_drawn_by_shardlab():
    line = "bf16[8,6] P(('data','model'), None) data=2,model=4"
    assert parse_layout_line(line) == layout((8, 6), "(data,model),None", "data=2,model=4", "bf16")
    assert "│ device 0 " in statement_text(f"```layout\n{line}\n```")
    with pytest.raises(LabError, match=r"\[layout\."):
        parse_layout_line("f32[8,6] Q(x) data=2")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_page_of_the_catalogue_fits(width):
    for slug, problem in load_catalogue().problems.items():
        shown = statement_text(problem.read_text("statement.md"), width)
        assert "wrong/" not in shown, slug
        assert "```" not in shown, slug
        words = [line for line in shown.splitlines() if not line.startswith("    ")]
        assert max(map(len, words)) <= width, slug


@pytest.mark.parametrize(
    "page", ["# Sum\x1b]0;x\x07", "Text \x1b[2J\x9b1m.", "```\n\x1b[31mf(x)\n```"]
)
def test_a_page_cannot_control_the_terminal(page):
    text = statement_text(page)
    assert "?" in text
    assert text.replace("\n", "").isprintable()
