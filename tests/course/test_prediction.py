"""Questions of a page, and formulas."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from shardlab.course.formula import formula_mathml
from shardlab.course.prediction import parse_prediction
from shardlab.course.statement_text import statement_text

CHOICES = "What of\n`x`?\n( ) f32[12]\n(x) f32[3]\nwhy: 12 / 4,\n  by `data`.\n"


def test_a_question_with_choices_is_read():
    prediction = parse_prediction(CHOICES)
    assert prediction.question == "What of `x`?"
    assert prediction.choices == ("f32[12]", "f32[3]")
    assert prediction.answer == "f32[3]"
    assert prediction.why == "12 / 4, by `data`."
    assert prediction.is_right("f32[3]")
    assert not prediction.is_right("f32[12]")


@pytest.mark.parametrize(
    ("guess", "is_right"),
    [
        ("1048576", True),
        ("1,048,576", True),
        (" 1 048 576 bytes ", True),
        ("1048576.0", True),
        ("1048577", False),
        ("", False),
        ("a million", False),
        ("1e6", False),
    ],
)
def test_a_number_is_right_however_it_is_typed(guess, is_right):
    prediction = parse_prediction("How many?\nanswer: 1,048,576 bytes\nwhy: 2**20.")
    assert prediction.answer_text == "1,048,576 bytes"
    assert prediction.is_right(guess) is is_right


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("How?\n(x) a\n( ) b\n", "reason is missing"),
        ("How?\n(x) a\nwhy: so", "two or more"),
        ("How?\n( ) a\n( ) b\nwhy: so", "one is"),
        ("How?\n(x) a\n(x) b\nwhy: so", "one is"),
        ("How?\n(x) a\n( ) a\nwhy: so", "different choices"),
        ("How?\nwhy: so", "either choices"),
        ("(x) a\n( ) b\nwhy: so", "question is missing"),
        ("How?\n(x) a\n( ) b\nmore\nwhy: so", "after the answer"),
    ],
)
def test_a_question_that_cannot_be_read_says_what_is_missing(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_prediction(text)


def test_the_terminal_shows_the_answer_at_the_end_of_the_page():
    page = f"# Sum\n\n```predict\n{CHOICES}```\n\nThe rest of the page.\n"
    question, rest, answers = statement_text(page).partition("The rest of the page.")
    assert "Predict (1): What of x?" in question
    assert "a) f32[12]" in question
    assert "12 / 4" not in question
    assert rest
    assert "1. f32[3]: 12 / 4, by data." in answers


@pytest.mark.parametrize(
    ("formula", "elements"),
    [
        ("y = x / n", ["mi", "mo", "mfrac"]),
        ("sqrt(x)", ["msqrt"]),
        ("q @ k.T", ["mi", "mspace", "msup"]),
        ("p[i] == exp(x) ** 2", ["msub", "mo", "msup"]),
    ],
)
def test_a_formula_is_mathml(formula, elements):
    (row,) = ElementTree.fromstring(formula_mathml(formula))
    assert [element.tag for element in row] == elements


def test_an_index_of_several_parts_is_below_its_symbol():
    (row,) = ElementTree.fromstring(formula_mathml("x[r, i]"))
    symbol, index = row.find("msub")
    assert (symbol.text, "".join(index.itertext())) == ("x", "r,i")


def test_a_formula_has_parentheses_exactly_where_they_are_needed():
    def text(formula):
        return "".join(ElementTree.fromstring(formula_mathml(formula)).itertext())

    assert text("a * (b + c)") == "a⋅(b+c)"
    assert text("(a * b) + c") == "a⋅b+c"
    assert text("a - (b - c)") == "a−(b−c)"
    assert text("(a + b) @ c") == "(a+b)c"
    assert text("(a + b) ** 2") == "(a+b)2"


@pytest.mark.parametrize(
    "formula", ["", "x = = 1", "lambda x: x", "f(x=1)", "'<b>'", "x" * 300, "(" * 90]
)
def test_what_has_no_notation_is_an_error(formula):
    with pytest.raises(ValueError, match=r"formula|expression|notation"):
        formula_mathml(formula)
