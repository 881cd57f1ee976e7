"""Advice on screens of any width, and the output if nothing fits."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from shardlab.planner.advice.advice_text import advice_headline, advice_html, advice_text
from shardlab.planner.advice.make_advice import advise


@pytest.fixture(scope="module")
def advice():
    return advise("mixtral-8x7b", "tpu-v5p", 32, batch=64, sequence=2048)


@pytest.mark.parametrize("width", [80, 100, 140])
def test_tables_keep_to_the_width(advice, width):
    lines = advice_text(advice, width).splitlines()
    lines.remove(f"  {advice.command}")  # not wrapped, to be copied
    assert max(map(len, lines)) <= width
    assert any(" MFU" in line and " step" in line for line in lines)


def test_color_changes_no_text(advice):
    console = Console(width=100, file=io.StringIO(), no_color=True)
    console.print(advice)
    printed = console.file.getvalue().split()
    assert printed == advice_text(advice, 100).split()


def test_html_has_the_verdicts_in_columns(advice):
    text = advice_html(advice)
    assert "<th" in text
    assert "verdict" in text
    assert advice.command in text
    assert advice._repr_html_() == text


def test_the_headline_says_that_nothing_fits_and_what_is_nearest():
    nothing = advise("llama3-70b", "h100", 4, batch=4, sequence=1024)
    assert advice_headline(nothing).startswith(
        "nothing fits: nearest is tensor=4, which does not fit: "
    )
    assert nothing.command == ""
    unusable = advise("llama3-70b", "h100", 11, batch=4, sequence=1024, pipeline=False)
    assert advice_headline(unusable) == "no usable mesh: the reasons are below"
    assert "No factorization of 11 devices divides this batch" in str(unusable)


def test_the_sufficient_number_of_devices_is_named():
    nothing = advise("llama3-70b", "h100", 4, batch=8, sequence=1024)
    n_devices = nothing.sufficient_devices
    text = f"{n_devices} devices, {n_devices // 4} times as many, are enough: "
    assert f"{text}{nothing.sufficient.mesh_text} with" in str(nothing).replace("\n", " ")


def test_memory_is_in_decimal_units(advice):
    assert "hbm_bytes 96.0 GB: " in str(advice)
    assert "GiB" not in str(advice)


def test_formulas_come_last_and_the_dtypes_are_complete(advice):
    headings = [
        "What fits",
        "Communication of the best",
        "Why the others lost",
        "Notes",
        "What to run next",
        "Formulas and figures",
    ]
    text = str(advice)
    positions = [text.index(f"\n{heading}") for heading in headings]
    assert positions == sorted(positions)
    assert "if usual" not in text


def test_one_line_stands_for_advice(advice):
    assert repr(advice).startswith("<Advice on mixtral-8x7b, 32 tpu-v5p: best: ")
    assert "\n" not in repr(advice)


def test_inference_has_no_columns_of_training():
    text = str(advise("llama3-8b", "h100", 1, batch=1, sequence=128, optimizer="none"))
    assert "1 of 1 mesh fits" in text
    heads = next(line for line in text.splitlines() if "MFU" in line and "mesh" in line)
    for column in ("ZeRO", "remat", "overlapped"):
        assert column not in heads
    assert "remat" not in text


def test_candidates_that_might_fit_are_named():
    slow = advise("llama3-8b", "tpu-v5e", 16, batch=32, sequence=4096, activation_margin=2)
    text = " ".join(str(slow).split())
    assert "might fit, with --activation-margin 1; " in text
