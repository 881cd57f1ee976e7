"""Advice on screens of any width, and what is said when nothing fits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from shardlab.planner.advice.advice_text import advice_html, advice_text, advice_headline
from shardlab.planner.advice.make_advice import advise


@pytest.fixture(scope="module")
def advice():
    return advise("mixtral-8x7b", "tpu-v5p", 32, batch=64, sequence=2048)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_keep_to_the_width(advice, width):
    lines = advice_text(advice, width).splitlines()
    lines.remove(f"  {advice.command}")  # never folded: it is to be copied
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
    assert advice_headline(nothing).startswith(
        "nothing fits: nearest is tensor=4, which does not fit: "
    )
    assert nothing.command == ""
    refused = advise("llama3-70b", "h100", 11, batch=4, sequence=1024)
    assert advice_headline(refused) == "no mesh suits: each is refused below"
    assert "11 devices have no factors that cut this batch" in str(refused)


def test_a_reader_learns_how_many_chips_are_enough():
    nothing = advise("llama3-70b", "h100", 4, batch=8, sequence=1024)
    n = nothing.enough_chips
    assert f"{n} chips, {n // 4} times as many, are enough: {nothing.enough.mesh_text} with" in str(
        nothing
    ).replace("\n", " ")


def test_memory_has_the_units_of_the_rest(advice):
    assert "hbm_bytes 96.0 GB: " in str(advice)
    assert "GiB" not in str(advice)


def test_formulas_stand_last_and_the_dtypes_are_told_in_full(advice):
    headings = ["What fits", "What the best sends", "Why others lost", "To know", "Next"]
    text = str(advice)
    places = [text.index(f"\n{each}") for each in (*headings, "Formulas and figures")]
    assert places == sorted(places)
    assert "if usual" not in text


def test_one_line_stands_for_advice(advice):
    assert repr(advice).startswith("<Advice on mixtral-8x7b, 32 tpu-v5p: best: ")
    assert "\n" not in repr(advice)


def test_tokens_have_no_columns_of_training():
    shown = str(advise("llama3-8b", "h100", 1, batch=1, sequence=128, optimizer="none"))
    assert "1 of 1 mesh can be used" in shown
    for word in ("ZeRO", "remat", "hides"):
        assert word not in shown


def test_what_might_fit_is_told_where_it_would_be_quicker():
    slow = advise("llama3-8b", "tpu-v5e", 16, batch=32, sequence=4096)
    shown = " ".join(str(slow).split())
    assert "might fit, with --activation-margin 1; the quickest: fsdp=16 fsdp remat full" in shown
    as_quick = advise("llama3-8b", "tpu-v5p", 64, batch=128, sequence=4096)
    assert "--activation-margin 1; none is quicker than the best" in " ".join(str(as_quick).split())
