"""A problem's `reference.py`: inputs from a seed, and the expected result in plain NumPy.

That of shardlab's own catalogue, or of a folder that an admin chose, is trusted code: the judge
loads it into its own process. That of an upload is executed in a sandboxed process only
(`judge/confined_reference.py`). The functions of the first part have plain names; those of a second
part end in `_2`:

    def inputs(draw):            # -> dict of arguments: NumPy arrays, and any other values
    def expected(mesh, **inputs) # -> the expected result; raises what a submission must raise
    def input_specs(mesh)        # optional: {argument: Spec}; otherwise arrays are replicated
    def output_specs(mesh)       # optional: Spec of the result, or a tree of them; None: any
                                 # both take (mesh, **inputs) too, if specs are among the inputs
    def budget(mesh, **inputs)   # optional: {"psum": 1, "wire_bytes": 8, "peak_bytes": 4096}
    def properties(mesh, inputs, result)  # optional: sentences about properties that do not hold
    def accepts(mesh, **inputs)  # optional: whether the statement allows these inputs

A budget is the maximum for one device. A kind of collective (`psum`) counts its calls, multiplied
by the loops around them; as soon as one kind is named, those that are not are forbidden. `calls`
counts all kinds together, and 0 forbids them. `payload_bytes` is the size of all operands of
collectives, `wire_bytes` what the device sends for them on a ring, `peak_bytes` what the compiled
program keeps resident: arguments, results and temporaries.

With `properties`, values are judged by it alone, for tasks with many right results; `expected` then
gives only structure, shapes and dtypes. A sentence may come with its cause:
`("same_random_numbers", "All shards drop the same elements.")`.

The mutation audit tries inputs of its own; `accepts` rejects those that the statement rules out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardlab.catalogue.problem import Part, Problem
from shardlab.errors import InvalidReference
from shardlab.sharding.mesh import Mesh

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The source of a case's inputs: random numbers, mesh, scale, and the number of the case."""

    rng: np.random.Generator
    mesh: Mesh  # of one device if the part has none
    scale: int  # 1: the smallest inputs that expose every mistake, to be read; 2 and 3: larger
    number: int  # of the case within its part, to vary what is not random

    def numbers(self, *shape: int, largest: int = 10) -> np.ndarray[Any, Any]:
        """Return a float32 array of both signs with zeros: integers at scale 1, else fractions.

        The fractions have 10 significant bits: too many for bfloat16, and few enough that sums of
        some products are exact in any order.
        """
        if self.scale == 1:
            largest, unit = min(largest, 4), 1
        else:
            unit = 1 << (640 // largest).bit_length() - 1
        values = self.rng.integers(-largest * unit, largest * unit + 1, shape) / unit
        return (values * (self.rng.random(shape) >= 0.1)).astype("float32")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The functions of one part."""

    inputs: Callable[[Draw], dict[str, Any]]
    expected: Callable[..., Any]
    input_specs: Callable[..., Mapping[str, Any]]  # of the mesh and the inputs, as `budget`
    output_specs: Callable[..., Any]
    budget: Callable[..., Mapping[str, int]]
    properties: Callable[..., list[str]] | None
    accepts: Callable[..., bool] | None = None


def _refuse_call(*arguments: Any, **inputs: Any) -> Any:
    raise AssertionError("there is no reference")


# Of a case that is decided without one: its submission cannot be read, or its reference failed.
NO_REFERENCE = Reference(
    inputs=_refuse_call,
    expected=_refuse_call,
    input_specs=_refuse_call,
    output_specs=_refuse_call,
    budget=_refuse_call,
    properties=None,
)


def load_reference(problem: Problem, part: Part) -> Reference:
    """Return the functions of a trusted `reference.py` for one part. Raises `InvalidReference`."""
    path = problem.folder / "reference.py"
    if not problem.is_trusted:
        # The last line of defence: no caller can execute an upload in its own process by mistake.
        raise InvalidReference(
            "reference.py of an uploaded catalogue runs in the sandbox only.",
            where=problem.slug,
            fix="open it with judge.confined_reference.open_references.",
        )
    return select_functions(execute_reference(path.read_bytes(), str(path)), part.number, part.call)


def select_functions(module: ModuleType, number: int, call: str) -> Reference:
    """Return the functions of one part. Raises `InvalidReference`."""
    suffix = "" if number == 1 else f"_{number}"

    def find_function(name: str, default: Any) -> Any:
        return getattr(module, name + suffix, default)

    for name in ("inputs", "expected"):
        if not callable(find_function(name, None)):
            raise InvalidReference(
                f"There is no function {name}{suffix} for part {number}, {call}.",
                where=str(module.__file__),
                fix=f"def {name}{suffix}({'draw' if name == 'inputs' else 'mesh, **inputs'}).",
            )
    return Reference(
        inputs=find_function("inputs", None),
        expected=find_function("expected", None),
        input_specs=_accept_inputs(find_function("input_specs", lambda mesh: {})),
        output_specs=_accept_inputs(find_function("output_specs", lambda mesh: None)),
        budget=find_function("budget", lambda mesh, **inputs: {}),
        properties=find_function("properties", None),
        accepts=find_function("accepts", None),
    )


def _accept_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of mesh and inputs for one that may take the mesh alone."""
    if len(inspect.signature(function).parameters) > 1:
        return function
    return lambda mesh, **inputs: function(mesh)


def execute_reference(source: bytes, path: str) -> ModuleType:
    """Return the module that a source defines. Raises `InvalidReference`."""
    module = ModuleType("reference")
    # For tracebacks, and for references that read a file beside them.
    module.__file__ = path
    try:
        # Compiled here because an import would leave __pycache__ beside the problem.
        exec(compile(source, path, "exec"), module.__dict__)
    except Exception as error:
        raise InvalidReference(
            f"reference.py cannot be loaded: {type(error).__name__}: {error}.",
            where=path,
            fix="fix it; it must be plain Python with NumPy.",
        ) from error
    return module
