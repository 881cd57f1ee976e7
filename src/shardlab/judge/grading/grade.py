"""Compares a run of a case with the expected result, one output after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardlab.catalogue.problem_schema import FLOW_CONSTRUCTS
from shardlab.judge.cases import Case
from shardlab.judge.grading import differing_replicas, requirements, wrong_values
from shardlab.judge.grading.differing_replicas import DifferingReplicas
from shardlab.judge.grading.evidence import (
    Array,
    Evidence,
    ShardResults,
    is_float,
    no_shard_results,
)
from shardlab.judge.grading.sharding import sharding_verdict
from shardlab.judge.grading.structure import (
    array_leaves,
    dtype_verdict,
    shape_verdict,
    structure_verdict,
)
from shardlab.judge.protocol.run_result import RunOutput, RunResult
from shardlab.judge.verdict import Verdict
from shardlab.sharding.spec import Spec


@dataclass(frozen=True, kw_only=True)
class ExpectedResult:
    """What is right for one case, from the problem's reference."""

    value: Any
    specs: Any = None
    budget: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, Array] = field(default_factory=dict)
    shard_results: ShardResults = no_shard_results
    # Result -> sentences about properties that do not hold, or pairs of a cause and a sentence.
    properties: Any = None


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The verdicts on a run, and the numbers that causes are read from.

    `wrong` and `differing` map the position of a verdict in `verdicts` to its numbers, so that the
    verdict can be worded again once all cases of the part are known.
    """

    verdicts: tuple[Verdict, ...] = ()
    evidence: tuple[Evidence, ...] = ()  # of every output with right shape and equal replicas
    wrong: Mapping[int, Evidence] = field(default_factory=dict)
    differing: Mapping[int, DifferingReplicas] = field(default_factory=dict)


def grade_run(case: Case, run: RunResult, expected: ExpectedResult) -> Grade:
    """Return the verdicts on a run; none if everything is as expected."""
    expected_arrays = {path: np.asarray(value) for path, value in array_leaves(expected.value)}
    outputs = {output.path: output for output in run.outputs}
    # Paths are compared first: without the same structure no two arrays correspond.
    if set(expected_arrays) != set(outputs):
        verdict = structure_verdict(set(expected_arrays), set(outputs), case.part.call)
        return Grade(verdicts=(verdict,))
    grading = _Grading(case, expected)
    for path, array in expected_arrays.items():
        grading.compare_output(outputs[path], array)
    if not grading.verdicts and expected.properties is not None:
        grading.check_properties()
    # Of wrong values neither sharding nor budgets are judged: they would be those of another
    # program.
    if not grading.verdicts and case.mesh is not None:
        for path, spec in output_specs(expected.specs, expected_arrays):
            verdict_or_none = sharding_verdict(outputs[path], spec, case.mesh)
            grading.verdicts += [verdict_or_none] if verdict_or_none else []
    if all(verdict.code == "SHARD" for verdict in grading.verdicts):
        grading.verdicts += _check_requirements(case, run, expected, bool(grading.verdicts))
    return Grade(
        verdicts=tuple(grading.verdicts),
        evidence=tuple(grading.evidence),
        wrong=grading.wrong,
        differing=grading.differing,
    )


def _check_requirements(
    case: Case, run: RunResult, expected: ExpectedResult, has_verdict: bool
) -> list[Verdict]:
    names = _judged_names(case)
    missing = requirements.find_missing(names, run, _device_count(case), case.part.axes)
    exceeded = requirements.find_exceeded(run, expected.budget)
    # If a forbidden collective takes the place of the required one, one verdict is enough.
    if any(verdict.code == "COMM" for verdict in exceeded):
        missing = [v for v in missing if v.details["missing"] in ("shard_map", "check_vma")]
    # Data that takes another way is the reason of most other verdicts, and adds nothing to them.
    if has_verdict or exceeded:
        missing = [v for v in missing if v.details["missing"] not in FLOW_CONSTRUCTS]
    # A result that is not sharded was computed from arrays that are not: one verdict is enough.
    if has_verdict:
        exceeded = [v for v in exceeded if not v.details.keys() & {"body_elements", "missing"}]
    # Nothing is compiled for virtual devices: the submission's own calls are known, and not those
    # that a compiler would insert or remove.
    return missing if case.is_simulated else [*missing, *exceeded]


def _device_count(case: Case) -> int:
    return case.mesh.n_devices if case.mesh else 1


def _judged_names(case: Case) -> list[str]:
    """Return the requirements that a case can show.

    Those about the data flow are judged where the program itself is read: on several host devices.
    On one device, and on simulated ones, the trace is all there is. Only a part without a mesh, for
    which there is no other case, is judged by that.
    """
    is_read = case.mesh is None or (case.mesh.n_devices > 1 and not case.is_simulated)
    return [name for name in case.part.requires if is_read or name not in FLOW_CONSTRUCTS]


class _Grading:
    """Collects verdicts on the outputs of one case."""

    def __init__(self, case: Case, expected: ExpectedResult) -> None:
        self._case, self._expected = case, expected
        self.verdicts: list[Verdict] = []
        self.evidence: list[Evidence] = []
        self.wrong: dict[int, Evidence] = {}
        self.differing: dict[int, DifferingReplicas] = {}

    def compare_output(self, output: RunOutput, expected: Array) -> None:
        """Compare one array: shape, dtype, replicas, values. The first difference counts."""
        name, mesh = f"result{output.path}", self._case.mesh
        if output.shape != expected.shape:
            self.verdicts.append(shape_verdict(name, output.shape, expected.shape, mesh))
            return
        if output.dtype != expected.dtype.name:
            self.verdicts.append(dtype_verdict(name, output.dtype, expected.dtype.name))
            return
        evidence = Evidence(
            output=output,
            expected=expected,
            mesh=mesh,
            atol=absolute_tolerance(self._case, expected),
            arguments=self._expected.arguments,
            shard_results=self._expected.shard_results,
            is_judged_by_properties=self._expected.properties is not None,
        )
        differing = differing_replicas.find_differing(evidence)
        if differing:
            self.differing[len(self.verdicts)] = differing
            missing = differing_replicas.find_missing_reduction([differing])
            self.verdicts.append(differing_replicas.replica_verdict(differing, missing))
            return
        self.evidence.append(evidence)
        # With properties, values are judged by these alone; the evidence is for causes.
        if self._expected.properties is None and not evidence.agrees:
            self.wrong[len(self.verdicts)] = evidence
            cause = wrong_values.find_cause([evidence])
            self.verdicts.append(wrong_values.value_verdict(evidence, cause))

    def check_properties(self) -> None:
        """Add what the problem says about a result that has many right values."""
        values = {item.output.path: item.actual for item in self.evidence}
        result = _fill_structure(self._expected.value, values)
        for violation in self._expected.properties(result):
            cause, sentence = ("", violation) if isinstance(violation, str) else violation
            if not cause:
                names = [wrong_values.find_cause([item]).name for item in self.evidence]
                cause = next((name for name in names if name), "")
            fix = wrong_values.cause_fix(cause, self._case.mesh)
            self.verdicts.append(Verdict(code="WA", what=sentence, fix=fix, cause=cause))


def absolute_tolerance(case: Case, expected: Array) -> float:
    """Return how far a value may be off. Rounding is relative to the largest element."""
    if not is_float(expected.dtype):
        return 0.0
    wide = np.abs(expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64))
    return case.part.atol + case.part.rtol * float(wide[np.isfinite(wide)].max(initial=0.0))


def _fill_structure(expected: Any, values: Mapping[str, Array], path: str = "") -> Any:
    """Return values by path in the containers of the expected result."""
    if isinstance(expected, Mapping):
        return {
            key: _fill_structure(item, values, f"{path}[{key!r}]") for key, item in expected.items()
        }
    if isinstance(expected, (list, tuple)):
        return type(expected)(
            _fill_structure(item, values, f"{path}[{number}]")
            for number, item in enumerate(expected)
        )
    return None if expected is None else values[path]


def output_specs(specs: Any, arrays: Mapping[str, Any]) -> Iterator[tuple[str, Spec]]:
    """Yield the expected spec of each output: one for all, or a tree of them."""
    if isinstance(specs, Spec):
        yield from ((path, specs) for path in arrays)
        return
    if specs is not None:
        yield from (
            (path, spec)
            for path, spec in array_leaves(specs)
            if isinstance(spec, Spec) and path in arrays
        )
