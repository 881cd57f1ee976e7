"""Compares what was seen of a case with what is right. Pure: runs nothing, loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardlab.judge.cases import Case
from shardlab.judge.grading import replicas as copies
from shardlab.judge.grading import requirements as allowed
from shardlab.judge.grading import sharding as placed
from shardlab.judge.grading import structure as shapes
from shardlab.judge.grading import wrong_values
from shardlab.judge.grading.evidence import Array, Evidence, Pieces, is_float, no_pieces
from shardlab.judge.grading.replicas import Differing
from shardlab.judge.grading.structure import leaves
from shardlab.judge.protocol.run_result import Seen
from shardlab.judge.verdict import Verdict
from shardlab.sharding.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Right:
    """What is right for one case, from the problem's reference."""

    expected: Any
    specs: Any = None
    budget: Mapping[str, int] = field(default_factory=dict)
    arguments: Mapping[str, Array] = field(default_factory=dict)
    pieces: Pieces = no_pieces
    # Result -> sentences about what does not hold, each alone or after the name of a cause.
    properties: Any = None


@dataclass(frozen=True, kw_only=True)
class Grade:
    """What is wrong with a run, and the numbers that causes are read from.

    A verdict about values stands in `verdicts` at the place that `differing` or `wrong` names by
    its position, so that it can be told anew once all cases of the part are known.
    """

    verdicts: tuple[Verdict, ...] = ()
    evidence: tuple[Evidence, ...] = ()  # of every output whose shape and copies are right
    wrong: Mapping[int, Evidence] = field(default_factory=dict)
    differing: Mapping[int, Differing] = field(default_factory=dict)


def grade(case: Case, seen: Seen, right: Right) -> Grade:
    """Return what is wrong with a run; no verdicts where all properties hold."""
    wanted = {path: np.asarray(value) for path, value in leaves(right.expected)}
    got = {output.path: output for output in seen.outputs}
    if set(wanted) != set(got):
        return Grade(verdicts=(shapes.structure(set(wanted), set(got), case.part.call),))
    graded = _Grading(case, right)
    for path, expected in wanted.items():
        graded.output(got[path], expected)
    if not graded.verdicts and right.properties is not None:
        graded.properties()
    if not graded.verdicts and case.mesh is not None:
        for path, spec in specs_of(right.specs, wanted):
            misplaced = placed.misplaced(got[path], spec, case.mesh)
            graded.verdicts += [misplaced] if misplaced else []
    is_right = not any(v.code in ("SHAPE", "DTYPE", "REPLICAS", "WA") for v in graded.verdicts)
    if is_right:
        n_devices = case.mesh.n_devices if case.mesh else 1
        over = allowed.over_budget(seen, right.budget)
        missing = allowed.required(case.part.requires, seen, n_devices)
        # Where a forbidden collective is in the place of the one asked for, once is enough.
        if any(verdict.code == "COMM" for verdict in over):
            missing = [v for v in missing if v.details["missing"] in ("shard_map", "check_vma")]
        # On virtual devices nothing is compiled: the answer's own calls are known, and not those
        # that a compiler would put in or leave out.
        graded.verdicts += missing if case.is_simulated else [*missing, *over]
    return Grade(
        verdicts=tuple(graded.verdicts),
        evidence=tuple(graded.evidence),
        wrong=graded.wrong,
        differing=graded.differing,
    )


class _Grading:
    """Collects verdicts about the outputs of one case."""

    def __init__(self, case: Case, right: Right) -> None:
        self._case, self._right = case, right
        self.verdicts: list[Verdict] = []
        self.evidence: list[Evidence] = []
        self.wrong: dict[int, Evidence] = {}
        self.differing: dict[int, Differing] = {}

    def output(self, output: Any, expected: Array) -> None:
        """Compare one array: shape, dtype, copies, values."""
        name, mesh = f"result{output.path}", self._case.mesh
        if output.shape != expected.shape:
            self.verdicts.append(shapes.shape(name, output.shape, expected.shape, mesh))
            return
        if output.dtype != expected.dtype.name:
            self.verdicts.append(shapes.dtype(name, output.dtype, expected.dtype.name))
            return
        evidence = Evidence(
            output=output,
            expected=expected,
            mesh=mesh,
            atol=tolerance(self._case, expected),
            arguments=self._right.arguments,
            pieces=self._right.pieces,
            is_judged_by_properties=self._right.properties is not None,
        )
        found = copies.differing(evidence)
        if found:
            self.differing[len(self.verdicts)] = found
            self.verdicts.append(copies.verdict(found, copies.common_reduction([found])))
            return
        self.evidence.append(evidence)
        if self._right.properties is None and not evidence.agrees:
            self.wrong[len(self.verdicts)] = evidence
            cause = wrong_values.cause_of([evidence])
            self.verdicts.append(wrong_values.verdict(evidence, cause))

    def properties(self) -> None:
        """Ask the problem what does not hold of a result of which several would be right."""
        values = {each.output.path: each.whole for each in self.evidence}
        for said in self._right.properties(_filled(self._right.expected, values)):
            cause, sentence = ("", said) if isinstance(said, str) else said
            if not cause:
                found = [wrong_values.cause_of([each]).name for each in self.evidence]
                cause = next((name for name in found if name), "")
            fix = wrong_values.fix_of(cause, self._case.mesh)
            self.verdicts.append(Verdict(code="WA", what=sentence, fix=fix, cause=cause))


def tolerance(case: Case, expected: Array) -> float:
    """Return how far a value may be off: rounding is measured by the largest."""
    if not is_float(expected.dtype):
        return 0.0
    wide = np.abs(expected.astype(np.complex128 if expected.dtype.kind == "c" else np.float64))
    return case.part.atol + case.part.rtol * float(wide[np.isfinite(wide)].max(initial=0.0))


def _filled(expected: Any, values: Mapping[str, Array], path: str = "") -> Any:
    """Return a result in the containers of what is expected."""
    if isinstance(expected, Mapping):
        return {key: _filled(each, values, f"{path}[{key!r}]") for key, each in expected.items()}
    if isinstance(expected, (list, tuple)):
        return type(expected)(
            _filled(each, values, f"{path}[{number}]") for number, each in enumerate(expected)
        )
    return None if expected is None else values[path]


def specs_of(specs: Any, wanted: Mapping[str, Any]) -> Iterator[tuple[str, Spec]]:
    """Yield the spec that is asked of each output: one for all, or a tree of them."""
    if isinstance(specs, Spec):
        yield from ((path, specs) for path in wanted)
        return
    if specs is not None:
        yield from (
            (path, spec)
            for path, spec in leaves(specs)
            if isinstance(spec, Spec) and path in wanted
        )
