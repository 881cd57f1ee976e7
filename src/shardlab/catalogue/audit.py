"""Everything that a problem promises, tried: examples, starter, solution, every wrong answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardlab.catalogue.draws import draw_faults
from shardlab.catalogue.fault import Fault
from shardlab.catalogue.lint import lint
from shardlab.catalogue.problem import Part, Problem
from shardlab.catalogue.wrong import Claim, read_claim, unproven
from shardlab.errors import LabError
from shardlab.records.judgement import CaseResult, Judgement

if TYPE_CHECKING:
    from shardlab.sandbox.guest import House

# Any will do: an answer must be right for every seed. The same each time, so that an audit that
# fails fails again.
SEED = 1
# By the clock. Computing is limited as ever: a busy machine must not make an answer look slow.
_PATIENCE = 120.0
_FEW = {1: ("{0}=1", "{0}=4", "rows=2"), 2: ("{0}=1,{1}=1", "{0}=2,{1}=4")}


@dataclass(frozen=True)
class Audit:
    """What came of one problem."""

    slug: str
    faults: tuple[Fault, ...]
    n_cases: int = 0
    n_wrong: int = 0

    @property
    def ok(self) -> bool:
        return not self.faults


def audit(house: House, problem: Problem, *, fast: bool = False) -> Audit:
    """Return what is wrong with a problem; `fast` reads it and tries the solution on few meshes."""
    counted: list[int] = []
    faults = lint(problem)
    try:
        # What cannot be read or drawn would be tried for the wrong things.
        if not any(fault.rule == "text.encoding" for fault in faults):
            faults += draw_faults(problem)
            patient = replace(problem, limits={"wall_seconds": _PATIENCE, **problem.limits})
            tried = _fast(house, patient) if fast else _whole(house, patient)
            for fault, n_cases in () if _is_broken(faults) else tried:
                counted.append(n_cases)
                faults += [fault] if fault else []
    except LabError as error:
        faults.append(Fault("problem", error.what, error.where))
    n_wrong = 0 if fast else len(problem.wrong)
    return Audit(problem.slug, tuple(faults), sum(counted), n_wrong)


def _is_broken(faults: list[Fault]) -> bool:
    return any(fault.rule in ("problem", "reference.inputs") for fault in faults)


Tried = Iterator[tuple[Fault | None, int]]


def _fast(house: House, problem: Problem) -> Tried:
    yield _solution(house, few(problem))


def _whole(house: House, problem: Problem) -> Tried:
    from shardlab.catalogue.examples import example_faults

    yield from ((fault, 0) for fault in example_faults(house, problem))
    yield _starter(house, few(problem))
    yield _solution(house, problem)
    for path in problem.wrong:
        claim = read_claim(path.read_text("utf-8"))
        if isinstance(claim, Claim):
            yield _wrong(house, problem, f"wrong/{path.name}", claim)


def few(problem: Problem) -> Problem:
    """Return the problem with two or three meshes in the place of its ladders."""

    def shorter(part: Part) -> Part:
        if "mesh" not in part.arguments:
            return part
        if part.ladder:
            return replace(part, ladder=part.ladder[-2:], large=())
        names = part.axes
        return replace(part, ladder=tuple(m.format(*names) for m in _FEW[len(names)]), large=())

    return replace(problem, parts=tuple(map(shorter, problem.parts)))


def _starter(house: House, problem: Problem) -> tuple[Fault | None, int]:
    judged = _judged(house, problem, "starter.py")
    if judged.passed:
        return Fault("starter.passes", "The starter passes.", "starter.py"), len(judged.cases)
    return _judge_failed(judged, "starter.py"), len(judged.cases)


def _solution(house: House, problem: Problem) -> tuple[Fault | None, int]:
    judged = _judged(house, problem, "solution.py")
    if judged.passed:
        return None, len(judged.cases)
    shows = tuple(_failures(judged, lambda case: not case.passed))
    return Fault("solution.fails", "The solution fails.", "solution.py", 0, shows), 0


def _wrong(house: House, problem: Problem, name: str, claim: Claim) -> tuple[Fault | None, int]:
    judged = _judged(house, problem, name)
    why = unproven(claim, judged)
    if not why:
        return None, len(judged.cases)
    shows = tuple(_failures(judged, lambda case: True))
    return Fault("wrong.unproven", why, name, 1, shows), len(judged.cases)


def _judge_failed(judged: Judgement, name: str) -> Fault | None:
    if judged.counts:
        return None
    shows = tuple(_failures(judged, lambda case: not case.passed))
    return Fault("judge", "The judge itself failed.", name, 0, shows)


def _judged(house: House, problem: Problem, name: str) -> Judgement:
    from shardlab.judge.judging import judge

    return judge(house, problem, problem.text(name), kind="submit", seed=SEED)


def _failures(judged: Judgement, is_shown: Callable[[CaseResult], bool]) -> Iterator[str]:
    """Yield each case with what was said of it."""
    for case in judged.cases:
        if is_shown(case):
            said = [
                f"{verdict.code}{f' {verdict.cause}' if verdict.cause else ''}"
                for verdict in case.verdicts
            ]
            yield f"part {case.part}, {case.name}: {', '.join(said)}"
            if not case.passed:
                told = "\n".join(map(str, case.verdicts)).splitlines()
                yield from (f"  {line}" for line in told)
