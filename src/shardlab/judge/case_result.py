"""What came of one question: verdicts, and all that later words and pictures are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardlab.judge import failures as troubles
from shardlab.judge.case_request import Question
from shardlab.judge.grading import requirements as allowed
from shardlab.judge.grading.grade import Grade, grade
from shardlab.judge.grading.plain_values import grade_value
from shardlab.judge.judgement import CaseResult
from shardlab.judge.protocol.run_result import Seen, read_seen, read_value
from shardlab.judge.source import SubmissionSource
from shardlab.judge.verdict import Verdict, most_telling
from shardlab.sandbox.frame import Frame, InvalidFrame

NO_GRADE = Grade()
_MOST_LETTERS = 400


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A question, what is wrong with its answer, and what was seen."""

    question: Question
    verdicts: tuple[Verdict, ...]
    grade: Grade = NO_GRADE
    seen: Seen | None = None
    value: Any = None  # of a part that is called with plain values
    output: str = ""

    @property
    def passed(self) -> bool:
        return not self.verdicts

    @property
    def code(self) -> str:
        return most_telling(self.verdicts)[0].code if self.verdicts else "AC"


def failed(question: Question, *verdicts: Verdict) -> Outcome:
    return Outcome(question=question, verdicts=verdicts)


def made_of(
    question: Question, told: Frame, ran: Frame | None, source: SubmissionSource
) -> Outcome:
    """Return what the answers of author and runner come to."""
    try:
        return _made_of(question, told, ran, source)
    except InvalidFrame as error:
        return failed(question, _no_result(str(error)))
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        # A runner executes none of the answer's Python: what it says and we cannot read is ours.
        return failed(question, troubles.fault(why) if ran else _no_result(why))


def _no_result(why: str) -> Verdict:
    return Verdict(
        code="RTE", what=f"Something else than a result came back: {why[:_MOST_LETTERS]}."
    )


def needs_run(question: Question, told: Frame) -> bool:
    """Say whether the author has sent a program that is worth running."""
    return question.kind == "export" and bool(told.buffers) and not _stops(told.header)


def _stops(header: Mapping[str, Any]) -> bool:
    grave = any(each.get("severity") == "error" for each in header.get("findings", ()))
    return grave or "error" in header


def _made_of(
    question: Question, told: Frame, ran: Frame | None, source: SubmissionSource
) -> Outcome:
    try:
        right = question.right
    except ValueError as error:
        told_error = told.header.get("error")
        hazards = [] if told_error else troubles.hazards(told.header, source)
        return failed(question, *(hazards or troubles.must_raise(error, told_error, source)))
    except Exception as error:
        why = f"the problem's own reference raised {type(error).__name__}: {error}"
        return failed(question, troubles.fault(why))
    hazards = troubles.hazards(told.header, source)
    if question.kind == "export" and ran is None:
        return failed(question, *(hazards or [_raised(question, told.header, source)]))
    header = (ran or told).header
    if "error" in header or (question.kind == "simulate" and "outputs" not in header):
        own = hazards if question.kind == "simulate" else []
        return failed(question, *(own or [_raised(question, header, source)]))
    if question.kind == "call":
        value = read_value(told)
        found = grade_value(question.case, value, right.expected)
        return Outcome(question=question, verdicts=tuple(found), value=value)
    seen = read_seen(ran or told, question.mesh.devices)
    if question.mesh.n_devices == 1 and not seen.has_shard_map:
        # JAX leaves no sign of it in a program for one device: there the trace's word counts.
        seen = replace(seen, has_shard_map=told.header.get("n_shard_maps", 0) > 0)
    seen = replace(
        seen,
        is_checked=not told.header.get("n_unchecked", 0),
        eager_bytes=told.header.get("eager_bytes", 0),
    )
    graded = grade(question.case, seen, right)
    verdicts = graded.verdicts or (tuple(hazards) if question.kind == "simulate" else ())
    return Outcome(question=question, verdicts=verdicts, grade=graded, seen=seen)


def _raised(question: Question, header: Mapping[str, Any], source: SubmissionSource) -> Verdict:
    verdict = troubles.raised(header.get("error", {}), source)
    if verdict.code == "CE" and not verdict.where:
        place = source.place(source.definition(question.case.part.function))
        return replace(verdict, where=place)
    mesh = question.case.mesh
    asked = verdict.what.removeprefix("KeyError: ").strip("'")
    if mesh and verdict.what.startswith("KeyError: '") and asked in ("data", "model"):
        names = ", ".join(map(repr, mesh.axis_names))
        return replace(verdict, fix=f"the mesh axes are {names} here: use mesh.axis_names.")
    return verdict


# ------------------------------------------------------------------------------------ as a record


def result(outcome: Outcome, is_example: bool) -> CaseResult:
    """Return an outcome as it is kept and shown."""
    case = outcome.question.case
    return CaseResult(
        name=case.name,
        part=case.part.number,
        mesh=str(case.mesh) if case.mesh else "",
        seed=case.seed,
        verdicts=most_telling(outcome.verdicts or (_accepted(outcome),)),
        is_example=is_example,
        is_simulated=case.is_simulated,
        output=outcome.output,
        facts=_facts(outcome),
        number=case.number,
    )


def _facts(outcome: Outcome) -> dict[str, Any]:
    seen = outcome.seen
    if seen is None:
        return {}
    collectives = [
        {
            "op": op,
            "count": sum(map(allowed.times, calls)),
            "payload_bytes": sum(allowed.times(c) * allowed.payload(c) for c in calls),
            "wire_bytes": sum(allowed.times(c) * allowed.wire(c) for c in calls),
        }
        for op, calls in allowed.by_kind(seen).items()
    ]
    return {"collectives": collectives, "peak_bytes": seen.peak_bytes}


def _accepted(outcome: Outcome) -> Verdict:
    case = outcome.question.case
    if case.part.kind == "value":
        return Verdict(code="AC", what="The value is right.")
    n = case.mesh.n_devices if case.mesh else 1
    what = f"Right on {n} simulated devices" if case.is_simulated else f"Right on {n} devices"
    told = [
        f"{each['count']} {each['op']} of {each['payload_bytes']:,} B"
        for each in _facts(outcome).get("collectives", ())
    ]
    return Verdict(
        code="AC", what="; ".join([what if n > 1 else "Right on one device", *told]) + "."
    )
