"""The progress of a judgement as JSON events: the cases in advance, each verdict, the end.

A page shows them while a submission is judged; every event is complete, so one that is lost or
read again changes nothing:

    {"event": "started", "n_cases": 2, "cases": [{"part": 1, "name": "data=2", ...}, ...]}
    {"event": "case", "position": 1, "n_cases": 2, "case": {...}, "verdict": {...}, ...}
    {"event": "judged", "passed": true, "verdict": {...}, "n_passed": 2, "n_cases": 2, ...}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shardlab._text.printable import printable_data
from shardlab.catalogue.problem import Problem
from shardlab.judge.cases import Case
from shardlab.judge.judge import EXAMPLES_SEED, select_cases
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class PlannedCase:
    """A case that a judgement has, known before anything is run. Its inputs are not part of it."""

    part: int
    number: int  # in its part
    name: str  # such as data=4
    mesh: str  # empty if the part has none
    n_devices: int
    is_simulated: bool

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}


def plan_cases(problem: Problem, *, kind: str, seed: int) -> tuple[PlannedCase, ...]:
    """Return the cases of a judgement of this kind (run or submit), in their order."""
    is_example = kind == "run"
    seed = EXAMPLES_SEED if is_example else seed
    return tuple(
        _plan_case(case) for part in problem.parts for case in select_cases(part, seed, is_example)
    )


def _plan_case(case: Case) -> PlannedCase:
    return PlannedCase(
        part=case.part.number,
        number=case.number,
        name=case.name,
        mesh=str(case.mesh) if case.mesh else "",
        n_devices=case.mesh.n_devices if case.mesh else 1,
        is_simulated=case.is_simulated,
    )


class JudgeProgress:
    """Makes the events of one judgement."""

    def __init__(self, problem: Problem, *, kind: str, seed: int) -> None:
        self._problem, self._kind = problem.slug, kind
        self._cases: Sequence[PlannedCase] = plan_cases(problem, kind=kind, seed=seed)
        self._n_judged, self._n_passed = 0, 0
        self._first_failure: Verdict | None = None

    def started_event(self) -> dict[str, Any]:
        """Return the first event: all cases, before the first is judged."""
        return {
            "event": "started",
            "problem": self._problem,
            "kind": self._kind,
            "n_cases": len(self._cases),
            "cases": [case.to_json() for case in self._cases],
        }

    def case_event(self, result: CaseResult) -> dict[str, Any]:
        """Return the event of the next case that is judged.

        `code_so_far` is AC until a case fails, and then the code of the first that did. The
        judgement at the end may name another cause, because it has seen all cases.
        """
        case = self._cases[self._n_judged]
        self._n_judged += 1
        self._n_passed += result.passed
        verdict = result.verdicts[0]
        if not result.passed and self._first_failure is None:
            self._first_failure = verdict
        return {
            "event": "case",
            "position": self._n_judged,
            "n_cases": len(self._cases),
            "n_passed": self._n_passed,
            "case": case.to_json(),
            "passed": result.passed,
            "verdict": _verdict_json(verdict),
            "code_so_far": self._first_failure.code if self._first_failure else "AC",
        }

    def judged_event(self, judgement: Judgement) -> dict[str, Any]:
        """Return the last event. The judgement itself is stored, and too large for an event."""
        return {
            "event": "judged",
            "n_cases": len(self._cases),
            "n_judged": len(judgement.cases),
            "n_passed": sum(case.passed for case in judgement.cases),
            "passed": judgement.passed,
            "counts": judgement.counts,
            "verdict": _verdict_json(judgement.verdict),
        }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return the sentence of a verdict; it quotes the submission, so it is made printable."""
    data: dict[str, Any] = printable_data(
        {
            "code": verdict.code,
            "title": verdict.title,
            "what": verdict.what,
            "where": verdict.where,
            "fix": verdict.fix,
            "cause": verdict.cause,
        }
    )
    return data
