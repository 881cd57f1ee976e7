"""An answer that was loaded: its names, and its functions called as a problem calls them."""

from __future__ import annotations

import difflib
import inspect
import linecache
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from shardlab.judge.protocol.values import ArrayLeaf, unpack
from shardlab.judge.worker.errors import ANSWER, AnswerError
from shardlab.judge.worker.host_mesh import partition_spec

_MOST_SOURCE = 1 << 20


class Submission:
    """The names that an answer defines; none before it is loaded."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    def load(self, data: bytes) -> list[str]:
        """Execute the source of an answer, and return the names of its functions."""
        source = decoded(data)
        linecache.cache[ANSWER] = (len(source), None, source.splitlines(True), ANSWER)
        # A module like any other: dataclasses and type hints look their own up by its name.
        module = types.ModuleType("answer")
        module.__file__ = ANSWER
        sys.modules["answer"] = module
        self.names = module.__dict__
        exec(compile(source, ANSWER, "exec", dont_inherit=True), self.names)
        return sorted(name for name, value in self.names.items() if callable(value))

    def function(self, asked: Mapping[str, Any]) -> Callable[..., Any]:
        """Return the function that is asked for, one that takes the arguments it will get."""
        name, order = asked["function"], asked["order"]
        if name not in self.names:
            own = [each for each, value in self.names.items() if inspect.isfunction(value)]
            close = difflib.get_close_matches(name, own, n=1)
            hint = f" The nearest name is {close[0]}." if close else ""
            raise AnswerError(
                "missing_function",
                f"There is no function {name} in the answer.{hint}",
                f"define {name}({', '.join(order)}) at the top level of the file.",
            )
        function = self.names[name]
        if not callable(function):
            raise AnswerError(
                "not_callable",
                f"{name} is of type {type(function).__name__}, not a function.",
                f"define it with def {name}({', '.join(order)}).",
            )
        _check_takes(function, name, order)
        called: Callable[..., Any] = function
        return called


def _check_takes(function: Callable[..., Any], name: str, order: Sequence[str]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin does not say what it takes
    try:
        signature.bind(*order)
    except TypeError as error:
        raise AnswerError(
            "signature",
            f"{name}{_short(signature)} cannot be called as {name}({', '.join(order)}): {error}.",
            f"write def {name}({', '.join(order)}): as in the starter.",
        ) from None


def _short(signature: inspect.Signature) -> str:
    """Return a signature without annotations."""
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    empty = inspect.Signature.empty
    return str(signature.replace(parameters=plain, return_annotation=empty))


def decoded(data: bytes) -> str:
    """Return source as text; what cannot be a program raises a SyntaxError with its line."""
    if len(data) > _MOST_SOURCE:
        raise SyntaxError(
            f"the file has {len(data):,} bytes; an answer may have {_MOST_SOURCE:,}",
            (ANSWER, 1, 1, ""),
        )
    try:
        source = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SyntaxError(
            f"byte 0x{data[error.start]:02x} is not UTF-8 text; save the file as UTF-8",
            (ANSWER, line, None, None),
        ) from None
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        raise SyntaxError("the file has null bytes in it", (ANSWER, line, None, None))
    return source


def arguments(asked: Mapping[str, Any], mesh: Any, leaf: Callable[[ArrayLeaf], Any]) -> list[Any]:
    """Return what an answer is called with, in order."""
    given = unpack(
        asked["arguments"], leaf, spec=partition_spec, key=lambda key: jax.random.key(key.seed)
    )
    return [mesh if name == "mesh" else given[name] for name in asked["order"]]
