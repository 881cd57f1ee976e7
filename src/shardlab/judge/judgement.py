"""The judgement of a submission: every case with its verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardlab.judge.debug_output import DebugOutput
from shardlab.judge.verdict import Verdict, sort_by_severity


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """The verdicts on one case; AC alone if it passed."""

    name: str  # such as "data=4"
    part: int  # counted from 1
    mesh: str  # as text; empty if the part has none
    seed: int
    verdicts: tuple[Verdict, ...]
    is_example: bool = False
    is_simulated: bool = False  # more devices than the judge runs on the host
    output: str = ""  # what the submission printed while it was traced
    # Figures of the run: collectives, peak_bytes; values by device and inputs of a small case.
    facts: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0  # in its part; with the part and the seed, enough to replay it
    debug_output: DebugOutput | None = None  # of jax.debug.print, by device

    @property
    def passed(self) -> bool:
        return all(verdict.code == "AC" for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "verdicts": [verdict.to_json() for verdict in self.verdicts],
            "debug_output": self.debug_output.to_json() if self.debug_output else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        output = data.get("debug_output")  # judgements of earlier versions have none
        fields = {
            "verdicts": tuple(map(Verdict.from_json, data["verdicts"])),
            "debug_output": DebugOutput.from_json(output) if output else None,
        }
        return cls(**{**data, **fields})


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """All cases of one submission, in the order in which they were judged."""

    problem: str
    content_version: int
    level: str  # of confinement: A, B or C; empty if nothing was executed
    seed: int  # the same submission with the same seed has the same judgement
    kind: str  # run (the examples) or submit (all cases)
    cases: tuple[CaseResult, ...]
    notes: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()  # names of the cases after an early end
    counterexample: CaseResult | None = None  # small and drawn anew: no hidden case
    confinement: str = ""  # what the level is made of, in words
    rejected_calls: Mapping[str, int] = field(default_factory=dict)  # system calls, by name

    @property
    def passed(self) -> bool:
        """Return whether every case was judged and passed, and there is at least one."""
        # A judgement that ended early must not pass because the cases so far did.
        is_complete = bool(self.cases) and not self.not_judged
        return is_complete and all(case.passed for case in self.cases)

    @property
    def counts(self) -> bool:
        """Return whether this is an attempt: an internal error of the judge is none."""
        return not any(v.code == "IE" for case in self.cases for v in case.verdicts)

    @property
    def first_failure(self) -> CaseResult | None:
        return next((case for case in self.cases if not case.passed), None)

    @property
    def verdict(self) -> Verdict:
        """Return the most severe verdict on the first case that failed; AC if none did."""
        failure = self.first_failure
        if failure is not None:
            return sort_by_severity(failure.verdicts)[0]
        if not self.passed:
            return Verdict(code="IE", what="No case was judged.")
        return Verdict(code="AC", what=_accepted_text(self.cases))

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "cases": [case.to_json() for case in self.cases],
            "notes": list(self.notes),
            "not_judged": list(self.not_judged),
            "counterexample": self.counterexample.to_json() if self.counterexample else None,
            "rejected_calls": dict(self.rejected_calls),
            "passed": self.passed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Judgement:
        # `passed` is stored for readers of the file; here it follows from the cases.
        fields = {key: value for key, value in data.items() if key != "passed"}
        counterexample = data.get("counterexample")
        fields |= {
            "cases": tuple(map(CaseResult.from_json, data["cases"])),
            "notes": tuple(data["notes"]),
            "not_judged": tuple(data.get("not_judged", ())),
            "counterexample": CaseResult.from_json(counterexample) if counterexample else None,
        }
        return cls(**fields)


def _accepted_text(cases: Sequence[CaseResult]) -> str:
    """Return what an accepted submission has shown: on how many meshes, and its communication."""
    meshes = {case.name for case in cases if case.mesh and not case.is_simulated}
    if not meshes:
        return f"All {len(cases)} cases passed."
    # The parts of a problem are often simulated on the same meshes.
    simulated = list(dict.fromkeys(case.mesh for case in cases if case.is_simulated))
    text = f"Same result on {len(meshes)} mesh{'es' * (len(meshes) > 1)}"
    if simulated:
        text += f" and, simulated, on {' and '.join(simulated)}"
    return "; ".join([text, *_collective_texts(cases)]) + "."


def _collective_texts(cases: Sequence[CaseResult]) -> list[str]:
    """Return each operation with its count and bytes, or their range over all meshes."""
    by_operation: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases:
        for figures in () if case.is_simulated else case.facts.get("collectives", ()):
            by_operation.setdefault(figures["op"], []).append(figures)
    return [
        f"{_range_text(figures, 'count')} {op} of {_range_text(figures, 'payload_bytes')} B"
        for op, figures in by_operation.items()
    ]


def _range_text(figures: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [entry[key] for entry in figures]
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
