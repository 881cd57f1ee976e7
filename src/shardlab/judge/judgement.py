"""The whole answer of the judge: every case with its verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shardlab.judge.verdict import Verdict, most_telling


@dataclass(frozen=True, kw_only=True)
class CaseResult:
    """What came of one case; no verdicts but AC where everything holds."""

    name: str  # what the case is about, such as "on data=4"
    part: int  # counted from 1
    mesh: str  # as text; empty where the part has none
    seed: int
    verdicts: tuple[Verdict, ...]
    is_example: bool = False
    is_simulated: bool = False  # more devices than this machine has for real
    output: str = ""  # what the answer printed
    # Figures of the run: collectives, peak_bytes, values by device, inputs of a small case.
    facts: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0  # within its part; with the part and the seed, enough to replay it

    @property
    def passed(self) -> bool:
        return all(verdict.code == "AC" for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "verdicts": [each.to_json() for each in self.verdicts]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CaseResult:
        return cls(**{**data, "verdicts": tuple(map(Verdict.from_json, data["verdicts"]))})


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """All cases of one submission, in the order in which they were judged."""

    problem: str
    content_version: int
    level: str  # of confinement: A, B or C; empty where nothing was executed
    seed: int  # the same answer with the same seed gives the same judgement
    kind: str  # run (the examples) or submit (all)
    cases: tuple[CaseResult, ...]
    notes: tuple[str, ...] = ()
    not_judged: tuple[str, ...] = ()  # names of cases that nobody came to
    counterexample: CaseResult | None = None  # small, drawn anew: no hidden case

    @property
    def passed(self) -> bool:
        """Say whether there were cases, and every one of them was judged and ended well."""
        is_whole = bool(self.cases) and not self.not_judged
        return is_whole and all(case.passed for case in self.cases)

    @property
    def counts(self) -> bool:
        """Say whether this is an attempt: a fault of the judge's own is none."""
        return not any(v.code == "IE" for case in self.cases for v in case.verdicts)

    @property
    def first_failure(self) -> CaseResult | None:
        return next((case for case in self.cases if not case.passed), None)

    @property
    def verdict(self) -> Verdict:
        """Return the most telling verdict of the first case that failed; AC where none did."""
        failed = self.first_failure
        if failed is not None:
            return most_telling(failed.verdicts)[0]
        if not self.passed:
            return Verdict(code="IE", what="No case was judged.")
        return Verdict(code="AC", what=_accepted(self.cases))

    def to_json(self) -> dict[str, Any]:
        return {
            **vars(self),
            "cases": [case.to_json() for case in self.cases],
            "notes": list(self.notes),
            "not_judged": list(self.not_judged),
            "counterexample": self.counterexample.to_json() if self.counterexample else None,
            "passed": self.passed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Judgement:
        given = {key: value for key, value in data.items() if key != "passed"}
        small = data.get("counterexample")
        given |= {
            "cases": tuple(map(CaseResult.from_json, data["cases"])),
            "notes": tuple(data["notes"]),
            "not_judged": tuple(data.get("not_judged", ())),
            "counterexample": CaseResult.from_json(small) if small else None,
        }
        return cls(**given)


def _accepted(cases: Sequence[CaseResult]) -> str:
    """Return what a right answer has shown: on how many meshes, and what it exchanges."""
    meshes = {case.name for case in cases if case.mesh and not case.is_simulated}
    if not meshes:
        return f"Right in {len(cases)} cases."
    # Parts of a problem are often simulated on the same meshes.
    simulated = list(dict.fromkeys(case.mesh for case in cases if case.is_simulated))
    told = f"Same result on {len(meshes)} mesh{'es' * (len(meshes) > 1)}"
    if simulated:
        told += f" and, simulated, on {' and '.join(simulated)}"
    return "; ".join([told, *_exchanged(cases)]) + "."


def _exchanged(cases: Sequence[CaseResult]) -> list[str]:
    """Return each kind of collective with its count and bytes, or their range over all meshes."""
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for case in cases:
        for each in () if case.is_simulated else case.facts.get("collectives", ()):
            seen.setdefault(each["op"], []).append(each)
    return [
        f"{_range(each, 'count')} {op} of {_range(each, 'payload_bytes')} B"
        for op, each in seen.items()
    ]


def _range(figures: Sequence[Mapping[str, Any]], key: str) -> str:
    low, high = min(each[key] for each in figures), max(each[key] for each in figures)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
