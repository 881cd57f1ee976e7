"""A submission that was loaded: its names, its functions, and its results as arrays."""

from __future__ import annotations

import inspect
import linecache
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shardlab._text.nearest import nearest_name
from shardlab.judge.protocol.reports import FunctionCall
from shardlab.judge.protocol.values import DTYPES, ArrayLeaf, unpack_value
from shardlab.judge.submission_source import SUBMISSION_FILE
from shardlab.judge.worker.error_reports import SubmissionError
from shardlab.judge.worker.jax_overrides import partition_spec
from shardlab.tracing.stage import drop_non_arrays

_MAX_SOURCE = 1 << 20
_MODULE_NAME = "submission"


class LoadedSubmission:
    """The names that a submission defines; none before it is loaded."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {}

    def load_source(self, data: bytes) -> tuple[str, ...]:
        """Execute the source, and return the names of its functions."""
        source = decode_source(data)
        lines = source.splitlines(True)
        # Tracebacks and JAX's messages quote the source from there; there is no such file.
        linecache.cache[SUBMISSION_FILE] = (len(source), None, lines, SUBMISSION_FILE)
        # A real module: dataclasses and type hints look up their own by its name.
        module = types.ModuleType(_MODULE_NAME)
        module.__file__ = SUBMISSION_FILE
        sys.modules[_MODULE_NAME] = module
        self.names = module.__dict__
        # dont_inherit: this file's `from __future__` imports must not apply to the submission.
        exec(compile(source, SUBMISSION_FILE, "exec", dont_inherit=True), self.names)
        return tuple(sorted(name for name, value in self.names.items() if callable(value)))

    def find_function(self, call: FunctionCall) -> Callable[..., Any]:
        """Return the function of a call, if it can be called with those arguments."""
        name, signature = call.function, f"{call.function}({', '.join(call.argument_names)})"
        if name not in self.names:
            functions = [key for key, value in self.names.items() if inspect.isfunction(value)]
            suggestion = nearest_name(name, functions)
            hint = f" Did you mean '{suggestion}'?" if suggestion else ""
            raise SubmissionError(
                "missing_function",
                f"The submission has no function '{name}'.{hint}",
                f"define {signature} at the top level of the file.",
            )
        function = self.names[name]
        if not callable(function):
            raise SubmissionError(
                "not_callable",
                f"{name} is of type {type(function).__name__}, not a function.",
                f"define it with def {signature}.",
            )
        _check_signature(function, name, call.argument_names)
        callable_function: Callable[..., Any] = function
        return callable_function


def _check_signature(function: Callable[..., Any], name: str, arguments: Sequence[str]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # builtins have no signature
    try:
        # Bound here, because a TypeError from the call itself could come from anywhere inside it.
        signature.bind(*arguments)
    except TypeError as error:
        call = f"{name}({', '.join(arguments)})"
        raise SubmissionError(
            "signature",
            f"{name}{_signature_text(signature)} cannot be called as {call}: {error}.",
            # Not `def {call}:`, because another part may call it without the last argument.
            f"keep the def line of the starter, which allows {call}.",
        ) from None


def _signature_text(signature: inspect.Signature) -> str:
    """Return a signature without annotations."""
    empty = inspect.Parameter.empty
    plain = [parameter.replace(annotation=empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def decode_source(data: bytes) -> str:
    """Return source as text. Raises a SyntaxError with a line for what cannot be a program."""
    if len(data) > _MAX_SOURCE:
        raise SyntaxError(
            f"the file has {len(data):,} bytes; the maximum is {_MAX_SOURCE:,}",
            (SUBMISSION_FILE, 1, 1, ""),
        )
    try:
        source = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SyntaxError(
            f"byte 0x{data[error.start]:02x} is not UTF-8 text; save the file as UTF-8",
            (SUBMISSION_FILE, line, None, None),
        ) from None
    if "\0" in source:
        line = source.count("\n", 0, source.index("\0")) + 1
        raise SyntaxError("the file contains null bytes", (SUBMISSION_FILE, line, None, None))
    return source


def build_arguments(call: FunctionCall, mesh: Any, leaf: Callable[[ArrayLeaf], Any]) -> list[Any]:
    """Return the arguments of a call, in order; `leaf` supplies each array."""
    inputs = unpack_value(
        call.packed_inputs, leaf, spec=partition_spec, key=lambda key: jax.random.key(key.seed)
    )
    return [mesh if name == "mesh" else inputs[name] for name in call.argument_names]


# ------------------------------------------------------------------------------------------ results


def array_result(name: str, result: Any) -> Any:
    """Return a result as dicts, lists and tuples of arrays. Raises `SubmissionError`.

    An exported program can return no other containers, and the judge compares no others.
    """
    if result is None:
        raise SubmissionError(
            "no_result", f"{name} returned None.", "end the function with a return statement."
        )
    arrays = plain_containers(drop_non_arrays(result))
    # An empty container is a valid result; one that contains only text or functions is not.
    if jax.tree.leaves(result) and not jax.tree.leaves(arrays):
        raise SubmissionError(
            "not_an_array",
            f"{name} returned a {type(result).__name__} ({result!r:.60}), which is no array.",
            "return a jax.Array, or a dict, list or tuple of them.",
        )
    for leaf in jax.tree.leaves(arrays):
        _check_dtype(name, leaf)
    return arrays


def _check_dtype(name: str, leaf: Any) -> None:
    dtype = jax.dtypes.canonicalize_dtype(jnp.result_type(leaf)).name
    if dtype not in DTYPES and dtype != "bfloat16":
        raise SubmissionError(
            "dtype",
            f"{name} returned an array of {dtype}, which the judge does not compare.",
            "return the dtype that the task asks for.",
        )


def plain_containers(result: Any) -> Any:
    """Return a result in dicts, lists and tuples alone; random keys as their numbers.

    >>> plain_containers({"w": (1, [2])})
    {'w': (1, [2])}
    """
    if isinstance(result, dict):
        return {str(key): plain_containers(value) for key, value in result.items()}
    if type(result) in (list, tuple):
        return type(result)(plain_containers(value) for value in result)
    leaves = jax.tree_util.tree_leaves_with_path(result)
    if len(leaves) == 1 and not leaves[0][0]:
        return _key_numbers(result)
    return {_leaf_name(path): _key_numbers(leaf) for path, leaf in leaves}


def _leaf_name(path: Any) -> str:
    """Return the name of a leaf in an object; an NNX variable and its value have one name."""
    name = str(jax.tree_util.keystr(path, simple=True, separator="."))
    return name.removesuffix(".value")


def _key_numbers(leaf: Any) -> Any:
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf
