"""Hidden cases with inputs and the result of the reference, which mutants are compared with."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from shardlab.catalogue.problem import Part
from shardlab.catalogue.reference import Reference
from shardlab.judge.cases import Case, make_cases
from shardlab.judge.grading.plain_values import grade_value
from shardlab.sharding.mesh import Mesh

Array = npt.NDArray[Any]
# Hidden cases are drawn at this scale.
HIDDEN_SCALE = 2


@dataclass(frozen=True)
class RaisedError:
    """The result of a call that must raise ValueError."""


RAISED = RaisedError()


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A call with its arguments and the right result."""

    case: Case
    mesh: Mesh
    inputs: Mapping[str, Any]
    result: Any

    @property
    def array_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(
            leaf.shape for _, leaf in input_leaves(self.inputs) if isinstance(leaf, np.ndarray)
        )

    @property
    def size(self) -> int:
        """Return the number of elements of all arrays."""
        return sum(
            leaf.size for _, leaf in input_leaves(self.inputs) if isinstance(leaf, np.ndarray)
        )


Compute = Callable[[Sample], Any]


def draw_samples(part: Part, reference: Reference, seed: int) -> list[Sample]:
    """Return the hidden cases of one submission, drawn from `seed`."""
    return [draw_sample(case, reference) for case in make_cases(part, seed, HIDDEN_SCALE)]


def draw_sample(case: Case, reference: Reference) -> Sample:
    mesh = case.draw.mesh
    inputs = reference.inputs(case.draw)
    result = call_expected(reference.expected, mesh, inputs)
    return Sample(case=case, mesh=mesh, inputs=inputs, result=result)


def call_expected(expected: Callable[..., Any], mesh: Mesh, inputs: Mapping[str, Any]) -> Any:
    """Return what a reference or a mutant of it computes; `RAISED` for the error it demands.

    The arrays are read-only, so that a mutant that writes into them gets copies and no other does.
    """
    with np.errstate(all="ignore"):
        try:
            return expected(mesh, **map_leaves(inputs, _protect_array))
        except ValueError as error:
            if "read-only" in str(error):
                return _call_with_copies(expected, mesh, inputs)
            if is_explicit_raise(error):
                return RAISED
            raise


def _protect_array(path: str, leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view


def _call_with_copies(expected: Callable[..., Any], mesh: Mesh, inputs: Mapping[str, Any]) -> Any:
    try:
        return expected(mesh, **copy.deepcopy(dict(inputs)))
    except ValueError as error:
        if is_explicit_raise(error):
            return RAISED
        raise


def is_explicit_raise(error: BaseException) -> bool:
    """Return whether the code itself raises, rather than a function of NumPy that it calls."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return False
    file = Path(traceback.tb_frame.f_code.co_filename)
    if not file.is_file():
        return False
    return traceback.tb_lineno in _raise_lines(file.read_text("utf-8"))


@lru_cache(maxsize=8)
def _raise_lines(source: str) -> set[int]:
    return {
        line
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def agrees(case: Case, actual: Any, expected: Any) -> bool:
    """Return whether the judge accepts a result, with the tolerance of the part."""
    if expected is RAISED or actual is RAISED:
        return actual is expected
    # A shortcut: most mutants that agree give the same numbers.
    are_arrays = isinstance(expected, np.ndarray) and isinstance(actual, np.ndarray)
    if are_arrays and actual.dtype == expected.dtype and np.array_equal(actual, expected):
        return True
    with np.errstate(all="ignore"):
        return not grade_value(case, actual, expected)


def input_leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each number, array, text and spec of the arguments with its path.

    >>> list(input_leaves({"params": {"b": 1}, "keys": (2, 3)}))
    [("params['b']", 1), ('keys[0]', 2), ('keys[1]', 3)]
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from input_leaves(item, f"{path}[{key!r}]" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from input_leaves(item, f"{path}[{number}]")
    else:
        yield path, value


def map_leaves(value: Any, transform: Callable[[str, Any], Any], path: str = "") -> Any:
    """Return the arguments with every leaf transformed; `transform` gets its path."""
    if isinstance(value, Mapping):
        return {
            key: map_leaves(item, transform, f"{path}[{key!r}]" if path else str(key))
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(
            map_leaves(item, transform, f"{path}[{number}]") for number, item in enumerate(value)
        )
    return transform(path, value)


def argument_of(path: str) -> str:
    """Return the argument that a path begins with.

    >>> argument_of("params['w'][0]")
    'params'
    """
    return path.split("[", 1)[0]
