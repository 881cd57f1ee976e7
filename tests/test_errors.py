"""Errors: the tree drawn on top is the tree there is, and every kind can be handled."""

from __future__ import annotations

import pickle
import re

import pytest

from shardlab import errors
from shardlab.errors import LabError


def kinds(kind=LabError):
    """Every kind below, depth first, in the order written."""
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from kinds(each)


def drawn_tree():
    """Name -> (parent, extra parent) as drawn in the module's docstring."""
    found, path = {}, []
    for line in errors.__doc__.splitlines():
        drawn = re.match(r"^((?:[│ ]  )*(?:[├└]─ )?)(\w+)(?: \((\w+)\))?$", line)
        if drawn and (drawn[2] == "LabError" or drawn[1]):
            depth = len(drawn[1]) // 3
            path[depth:] = [drawn[2]]
            found[drawn[2]] = (path[depth - 1] if depth else None, drawn[3])
    return found


def test_the_drawn_tree_is_the_real_one():
    real = {"LabError": (None, None)}
    for kind in kinds():
        parent, *others = kind.__bases__
        real[kind.__name__] = (parent.__name__, others[0].__name__ if others else None)
    assert drawn_tree() == real


def test_every_kind_has_a_code_of_its_own_under_its_parents():
    codes = [kind.code for kind in kinds()]
    assert len(set(codes)) == len(codes)
    for kind in kinds():
        parent = kind.__bases__[0]
        if parent is not LabError:
            assert kind.code.startswith(parent.code + ".")


@pytest.mark.parametrize("kind", list(kinds()), ids=lambda kind: kind.__name__)
def test_an_error_prints_and_stores_its_three_parts(kind):
    error = kind("What.", where="here", fix="that.")
    assert str(error) == f"[{kind.code}] What.\n  where: here\n  try:   that."
    assert error.to_json() == {"code": kind.code, "what": "What.", "where": "here", "fix": "that."}
    assert kind.__doc__


def test_parts_that_are_empty_are_not_printed():
    assert str(LabError("What.")) == "[lab] What."


def test_an_error_survives_pickle():
    error = errors.InvalidSize("What.", where="here", fix="that.")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (errors.InvalidSize, str(error))
