"""A problem's `reference.py`: inputs from a seed, and the right answer in plain NumPy.

It is the catalogue's own code, loaded by the judge and never by a confined process. One part's
functions have plain names; those of a second part end in `_2`:

    def inputs(draw):            # -> dict of arguments: NumPy arrays, and anything else as it is
    def expected(mesh, **inputs) # -> what the answer must return; raises what it must raise
    def input_specs(mesh)        # optional: {argument: Spec}; arrays arrive whole on every device
    def output_specs(mesh)       # optional: Spec of the result, or a tree of them; None: any layout
    def budget(mesh, **inputs)   # optional: {"psum": 1, "wire_bytes": 8, "peak_bytes": 4096}
    def properties(mesh, inputs, result)  # optional: sentences about what does not hold

A budget is the most that is allowed, for one device. A kind of collective (`psum`) counts its
calls, loops multiplied; as soon as one kind is named, those that are not are forbidden. `calls`
counts all kinds together, and 0 forbids them. `payload_bytes` is what the device puts into all its
calls (the operands), `wire_bytes` what it sends in them on a ring, `peak_bytes` what the compiled
program holds at a time: arguments, results and temporaries.

With `properties`, values are judged by it alone, for tasks of which many results are right;
`expected` then says of which arrays a result is made, their shapes and dtypes. A sentence may come
with its cause: `("same_random_numbers", "All pieces drop the same elements.")`.
"""

from __future__ import annotations

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
    """What inputs are made from: random numbers, the mesh, how large, and which case it is."""

    rng: np.random.Generator
    mesh: Mesh  # of one device where the part has none
    scale: int  # 1 is the smallest that shows every mistake, for people to read; 2 and 3 are larger
    number: int  # of the case within its part, to vary what is not random


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The functions of one part."""

    inputs: Callable[[Draw], dict[str, Any]]
    expected: Callable[..., Any]
    input_specs: Callable[[Mesh], Mapping[str, Any]]
    output_specs: Callable[[Mesh], Any]
    budget: Callable[..., Mapping[str, int]]
    properties: Callable[..., list[str]] | None


def load_reference(problem: Problem, part: Part) -> Reference:
    """Return what `reference.py` says of one part. Raises `InvalidReference`."""
    module = _module(problem)
    suffix = "" if part.number == 1 else f"_{part.number}"

    def found(name: str, default: Any) -> Any:
        return getattr(module, name + suffix, default)

    for name in ("inputs", "expected"):
        if not callable(found(name, None)):
            raise InvalidReference(
                f"There is no function {name}{suffix} for part {part.number}, {part.call}.",
                where=str(problem.folder / "reference.py"),
                fix=f"def {name}{suffix}({'draw' if name == 'inputs' else 'mesh, **inputs'}).",
            )
    return Reference(
        inputs=found("inputs", None),
        expected=found("expected", None),
        input_specs=found("input_specs", lambda mesh: {}),
        output_specs=found("output_specs", lambda mesh: None),
        budget=found("budget", lambda mesh, **inputs: {}),
        properties=found("properties", None),
    )


def _module(problem: Problem) -> ModuleType:
    path = problem.folder / "reference.py"
    module = ModuleType(f"reference_of_{problem.slug.replace('-', '_')}")
    module.__file__ = str(path)
    try:
        # Compiled here: an import would leave its cache beside the problem.
        exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    except Exception as error:
        raise InvalidReference(
            f"reference.py cannot be loaded: {type(error).__name__}: {error}.",
            where=str(path),
            fix="mend it; it is plain Python with NumPy.",
        ) from error
    return module
