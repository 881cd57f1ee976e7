"""Do the arguments vary? A submission may contain every value that does not.

The mutation audit sees only what changes the expected result. These rules also cover arguments that
the reference ignores, such as a spec or the number of microbatches, and sizes of dimensions.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.reference import Reference, load_reference
from shardlab.course.argument_mutants import path_pattern, varying_arguments
from shardlab.course.audit_exceptions import AuditExceptions
from shardlab.course.hidden_samples import HIDDEN_SCALE, input_leaves
from shardlab.course.problem_lint import Fault
from shardlab.judge.cases import Case, make_cases
from shardlab.sharding.spec import Spec

_N_SEEDS = 10
_MAX_DEVICES = 8  # larger meshes draw the same, at a higher price
_REFERENCE = "reference.py"


def check_inputs(problem: Problem, exceptions: AuditExceptions, *, seed: int) -> Iterator[Fault]:
    """Yield the arguments that do not vary, and exceptions that are not needed."""
    used: set[tuple[str, str]] = set()
    for part in problem.parts:
        reference = load_reference(problem, part)
        for variety in _collect(part, reference, seed):
            for rule, message in _violations(variety, part):
                if exception := exceptions.find_input(variety.path, rule):
                    used.add(exception)
                else:
                    yield _fault(rule, f"Part {part.number}: {message}")
    for argument, rule in exceptions.inputs:
        if (argument, rule) not in used:
            message = f"{argument} needs no exception from {rule}."
            yield Fault(rule="audit.unused", message=message, file="audit.toml")


def _fault(rule: str, message: str) -> Fault:
    # Spelled out: a test compares the rules in the source with the list of rules.
    makers: Mapping[str, Callable[[], Fault]] = {
        "inputs.fixed": lambda: Fault(rule="inputs.fixed", message=message, file=_REFERENCE),
        "inputs.few": lambda: Fault(rule="inputs.few", message=message, file=_REFERENCE),
        "inputs.shape": lambda: Fault(rule="inputs.shape", message=message, file=_REFERENCE),
        "inputs.size_one": lambda: Fault(rule="inputs.size_one", message=message, file=_REFERENCE),
        "inputs.ties": lambda: Fault(rule="inputs.ties", message=message, file=_REFERENCE),
    }
    return makers[rule]()


@dataclass
class _Variety:
    """What one argument is, in each case of several seeds."""

    path: str
    values: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    # Sizes of each dimension on one device, by number of the case.
    shard_shapes: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def is_array(self) -> bool:
        return isinstance(next(iter(self.values.values()))[0], np.ndarray)


def _collect(part: Part, reference: Reference, seed: int) -> list[_Variety]:
    cases = [make_cases(part, seed + number, HIDDEN_SCALE) for number in range(_N_SEEDS)]
    # Elsewhere the mesh is drawn from the seed too, so a shape that varies need not be drawn.
    on_fixed_mesh = {
        same_number[0].number
        for same_number in zip(*cases, strict=True)
        if _all_equal([case.mesh for case in same_number])
    }
    drawn = [
        (case, reference.inputs(case.draw))
        for case in itertools.chain.from_iterable(cases)
        if case.mesh is None or case.mesh.n_devices <= _MAX_DEVICES
    ]
    varying = varying_arguments([inputs for _, inputs in drawn])
    varieties: dict[str, _Variety] = {}
    for case, inputs in drawn:
        specs = reference.input_specs(case.draw.mesh, **inputs)
        for path, leaf in input_leaves(inputs):
            pattern = path_pattern(path, varying)
            variety = varieties.setdefault(pattern, _Variety(pattern))
            if case.number in on_fixed_mesh:
                variety.values[case.number].append(leaf)
            if isinstance(leaf, np.ndarray):
                shape = _shard_shape(leaf.shape, _find_spec(specs, path), case)
                variety.shard_shapes.append(shape)
    return [variety for variety in varieties.values() if variety.values]


def _find_spec(specs: Mapping[str, Any], path: str) -> Any:
    """Return the spec of an array: its own, or that of the container it is in."""
    leaves = dict(input_leaves(dict(specs)))
    return next((spec for prefix, spec in leaves.items() if path.startswith(prefix)), None)


def _shard_shape(shape: tuple[int, ...], spec: Any, case: Case) -> tuple[int, ...]:
    """Return the sizes on one device. What arrives without a spec is sharded by the submission."""
    mesh = case.draw.mesh
    if not isinstance(spec, Spec):
        counts = {*mesh.axis_sizes, mesh.n_devices}
        return tuple(1 if size in counts else size for size in shape)
    per_dim = [int(np.prod([mesh.shape[name] for name in names])) for names in spec.axes]
    per_dim += [1] * (len(shape) - len(per_dim))
    return tuple(size // count for size, count in zip(shape, per_dim, strict=False))


def _violations(variety: _Variety, part: Part) -> Iterator[tuple[str, str]]:
    path = variety.path
    if all(_all_equal(values) for values in variety.values.values()):
        yield (
            "inputs.fixed",
            f"{path} is the same for every seed: it follows from the case and its mesh.",
        )
    if variety.is_array:
        yield from _array_violations(variety)
        return
    distinct = {repr(values[0]) for values in variety.values.values()}
    needed = _needed_values(next(iter(variety.values.values()))[0], len(variety.values))
    if len(distinct) < needed:
        values = ", ".join(sorted(distinct))
        yield "inputs.few", f"{path} has few values in the cases of a seed: {values}."


def _needed_values(value: Any, n_cases: int) -> int:
    if isinstance(value, (bool, str, Spec)):
        return min(2, n_cases)
    return min(3, n_cases)


def _array_violations(variety: _Variety) -> Iterator[tuple[str, str]]:
    path = variety.path
    arrays = [array for values in variety.values.values() for array in values]
    # Arrays of a dict whose keys vary can have different numbers of dimensions.
    for dim in range(max(array.ndim for array in arrays)):
        by_case = [
            [array.shape[dim : dim + 1] for array in values] for values in variety.values.values()
        ]
        if all(map(_all_equal, by_case)):
            message = f"dimension {dim} of {path} has one size per mesh, whatever the seed is."
            yield "inputs.shape", message
        if all(shape[dim : dim + 1] != (1,) for shape in variety.shard_shapes):
            message = f"dimension {dim} of {path} has size 1 on a device in no case."
            yield "inputs.size_one", message
    if arrays[0].dtype.kind == "f" and not any(
        np.unique(array).size < array.size for array in arrays
    ):
        yield "inputs.ties", f"no two elements of {path} are equal in any case."


def _all_equal(values: Sequence[Any]) -> bool:
    first = values[0]
    if isinstance(first, np.ndarray):
        return all(np.array_equal(first, value) for value in values[1:])
    return all(first == value for value in values[1:])
