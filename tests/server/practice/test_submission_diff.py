"""The difference between two submissions: also of texts that are made to keep a server busy."""

from __future__ import annotations

import pytest

from shardlab.server.practice.problem_view import diff_lines

MAX_SOURCE = 256 << 10


def changes(old, new):
    """Return removed and added lines."""
    lines = diff_lines(old, new)
    return tuple([row.text for row in lines if row.kind == kind] for kind in ("removed", "added"))


def test_a_long_text_of_equal_lines_is_compared_from_both_ends():
    n_lines = MAX_SOURCE // 2
    old = "a\n" * n_lines
    new = "a\n" * (n_lines - 1000) + "b\n" + "a\n" * 999
    assert changes(old, new) == (["a"], ["b"])
    assert changes(old, old) == ([], [])
    assert changes(old, "a\n" * (n_lines - 2)) == (["a", "a"], [])


@pytest.mark.parametrize("n_lines", [200, 20_000])
def test_lines_that_match_one_by_one_are_compared(n_lines):
    old = "".join(f"m{n}\nu{n}\n" for n in range(n_lines))
    new = "".join(f"m{n}\nv{n}\n" for n in range(n_lines))
    removed, added = changes(old, new)
    assert {f"u{n}" for n in range(n_lines)} <= set(removed)
    assert {f"v{n}" for n in range(n_lines)} <= set(added)
    assert ("m1" in removed) == (n_lines > 4000)  # one block, from the first change to the last


def test_a_usual_program_is_compared_line_by_line():
    old = "".join(f"def f{n}():\n    return {n}\n\n\n" for n in range(100))
    assert changes(old, old.replace("return 50", "return 5")) == (
        ["    return 50"],
        ["    return 5"],
    )
