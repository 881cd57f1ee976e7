"""Advice on screens of any width, and what is said when nothing fits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from shardlab.plans.advise import advise
from shardlab.render.advice import advice_html, advice_text, headline


@pytest.fixture(scope="module")
def advice():
    return advise("mixtral-8x7b", "tpu-v5p", 32, batch=64, sequence=2048)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_keep_to_the_width(advice, width):
    *lines, _ = advice_text(advice, width).splitlines()  # the last is a command, never folded
    assert max(map(len, lines)) <= width
    assert any(" MFU" in line and " step" in line for line in lines)


def test_colour_changes_no_word(advice):
    console = Console(width=100, file=io.StringIO(), no_color=True)
    console.print(advice)
    words = console.file.getvalue().split()
    assert words == advice_text(advice, 100).split()


def test_html_has_the_verdicts_in_columns(advice):
    shown = advice_html(advice)
    assert "<th" in shown
    assert "verdict" in shown
    assert advice.command in shown
    assert advice._repr_html_() == shown


def test_the_headline_says_that_nothing_fits_and_what_is_nearest():
    nothing = advise("llama3-70b", "h100", 4, batch=4, sequence=1024)
    assert headline(nothing).startswith("nothing fits: nearest is tensor=4, which does not fit: ")
    assert nothing.command == ""
    refused = advise("llama3-70b", "h100", 7, batch=4, sequence=1024)
    assert headline(refused) == "no mesh suits: each is refused below"
    assert "7 devices have no factors that cut this batch" in str(refused)
