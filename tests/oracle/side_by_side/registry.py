"""Collects a module's programs by name."""

from collections.abc import Callable
from typing import Any

Program = Callable[[], Any]


class Programs(dict[str, Program]):
    """`@programs` above a function adds it under its name."""

    def __call__(self, function: Program) -> Program:
        assert function.__name__ not in self, function.__name__
        self[function.__name__] = function
        return function
