"""YAML of unknown origin: plain values only, and an error in bounded time for everything else."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab._files.yaml_reader import MAX_CHARACTERS, parse_yaml

BILLION_LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


def test_plain_values_are_read():
    text = "size: 4_096\nshare: 0.5\nname: 'llama'\nnone:\nlist: [1, [a, b]]\n# end\n"
    assert parse_yaml(text) == {
        "size": 4096,
        "share": 0.5,
        "name": "llama",
        "none": None,
        "list": [1, ["a", "b"]],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3", "the key 'a' appears twice, line 3"),
        ("x: {a: 1, a: 2}", "the key 'a' appears twice, line 1"),
        (BILLION_LAUGHS, "anchors (& and *) are not read, line 1"),
        ("a: *b", "anchors (& and *) are not read, line 1"),
        ("a: !!python/object/apply:os.system [id]", "could not determine a constructor"),
        ("a: !local x", "the tag '!local' is not read, line 1"),
        ("[" * 50_000, "more than 20 levels of nesting, line 1"),
        ("- " * 5_000 + "x", "more than 20 levels of nesting, line 1"),
        ("a: [1, 2", "expected ',' or ']'"),
        ("a: b: c", "mapping values are not allowed here, line 1"),
        ("a: 1\n---\nb: 2", "but found another document"),
        ("? [a]\n: 1", "a key is no text, line 1"),
        ("a: 2024-99-99", "month must be in 1..12"),
        (f"a: {'9' * 5000}", "Exceeds the limit"),
        ("a: \x07", "special characters are not allowed"),
        ("x" * (MAX_CHARACTERS + 1), "the limit is 400,000"),
    ],
)
def test_what_is_not_plain_yaml_is_rejected_with_its_line(text, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_yaml(text)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="a1:-[]{}&*!|>'\"#,?% \n\t", max_size=60))
def test_any_text_is_read_or_rejected(text):
    with contextlib.suppress(ValueError):  # any other exception fails the test
        parse_yaml(text)
