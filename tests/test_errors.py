"""Errors: the tree in the module docstring is the real class tree; every class works alike."""

from __future__ import annotations

import pickle
import re

import pytest

from shardlab import errors
from shardlab.errors import LabError


def error_classes(base=LabError):
    """Yield all subclasses, depth first, in the order of the file."""
    for error_class in base.__subclasses__():
        if error_class.__module__ == errors.__name__:
            yield error_class
            yield from error_classes(error_class)


def documented_tree():
    """Return name -> (parent, built-in parent) as drawn in the module docstring."""
    tree, path = {}, []
    for line in errors.__doc__.splitlines():
        match = re.match(r"^((?:[│ ]  )*(?:[├└]─ )?)(\w+)(?: \((\w+)\))?$", line)
        if match and (match[2] == "LabError" or match[1]):
            depth = len(match[1]) // 3
            path[depth:] = [match[2]]
            tree[match[2]] = (path[depth - 1] if depth else None, match[3])
    return tree


def test_the_documented_tree_is_the_class_tree():
    tree = {"LabError": (None, None)}
    for error_class in error_classes():
        parent, *builtins = error_class.__bases__
        tree[error_class.__name__] = (
            parent.__name__,
            builtins[0].__name__ if builtins else None,
        )
    assert documented_tree() == tree
    assert list(documented_tree()) == list(tree)  # in the order of the file


def test_every_class_has_a_unique_code_below_its_parents():
    codes = [error_class.code for error_class in error_classes()]
    assert len(set(codes)) == len(codes)
    for error_class in error_classes():
        parent = error_class.__bases__[0]
        if parent is not LabError:
            assert error_class.code.startswith(parent.code + ".")


@pytest.mark.parametrize("error_class", list(error_classes()), ids=lambda cls: cls.__name__)
def test_an_error_prints_and_stores_its_three_parts(error_class):
    error = error_class("What.", where="here", fix="that.")
    code = error_class.code
    assert str(error) == f"[{code}] What.\n  where: here\n  try:   that."
    assert error.to_json() == {"code": code, "what": "What.", "where": "here", "fix": "that."}
    assert error_class.__doc__


def test_empty_parts_are_not_printed():
    assert str(LabError("What.")) == "[lab] What."


def test_an_error_survives_pickle():
    error = errors.InvalidSize("What.", where="here", fix="that.")
    restored = pickle.loads(pickle.dumps(error))
    assert (type(restored), str(restored)) == (errors.InvalidSize, str(error))
