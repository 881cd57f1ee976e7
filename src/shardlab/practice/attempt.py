"""One answer handed to the judge: kept before it is judged, its judgement kept after."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from shardlab.catalogue.problem import Problem
from shardlab.errors import NoSuchSubmission
from shardlab.layouts.cuts import nearest_name
from shardlab.records.judgement import CaseResult, Judgement
from shardlab.records.submission import Submission
from shardlab.sandbox.guest import House
from shardlab.store.record import Record

Tell = Callable[[CaseResult], None]


@dataclass(frozen=True)
class Attempt:
    """A judged submission and the number under which it is kept."""

    number: int
    judgement: Judgement


def attempt(
    record: Record,
    house: House,
    problem: Problem,
    source: bytes,
    *,
    kind: str,
    seed: int | None = None,
    tell: Tell = lambda result: None,
) -> Attempt:
    """Judge an answer and keep both; hidden cases come from a seed that is drawn here.

    What ends the judging early (a kill, an exception from `tell`) leaves an unfinished submission,
    which `judge_again` takes up.
    """
    from shardlab.judge.judging import EXAMPLES_SEED

    drawn = secrets.randbits(31) if seed is None else seed
    drawn = EXAMPLES_SEED if kind == "run" else drawn
    number = record.hand_in(problem.slug, problem.content_version, source, kind=kind, seed=drawn)
    return _judged(record, number, house, problem, source, kind, drawn, tell)


def judge_again(
    record: Record,
    house: House,
    problem: Problem,
    submission: Submission,
    tell: Tell = lambda result: None,
) -> Attempt:
    """Judge a submission as it was handed in: the same answer, the same seed."""
    source = record.source(submission.number)
    kind, seed = submission.kind, submission.seed
    return _judged(record, submission.number, house, problem, source, kind, seed, tell)


def look_at_case(
    house: House, problem: Problem, source: bytes, *, kind: str, seed: int, case: str
) -> Judgement:
    """Judge one case alone, named as a verdict names it (data=4), or with its part (2: data=4).

    It is not kept: one case is no attempt. Raises `NoSuchSubmission`.
    """
    from shardlab.judge.cases import cases_of
    from shardlab.judge.judging import replay

    wanted = case.strip().lower().removeprefix("part ")
    known = {}
    for part in problem.parts:
        for each in cases_of(part, seed, 1):
            for name in (each.name, f"{part.number}: {each.name}", f"{part.number}.{each.number}"):
                known[name.lower()] = (part.number, each.number)
    if wanted not in known:
        near = nearest_name(wanted, known)
        raise NoSuchSubmission(
            f"'{problem.slug}' has no case '{case}'.",
            where=f"{len(problem.parts)} parts",
            fix=f"'{near}', the nearest name." if near else "a name from the judgement.",
        )
    number = known[wanted]
    return replay(house, problem, source, kind=kind, seed=seed, part=number[0], number=number[1])


def _judged(
    record: Record,
    number: int,
    house: House,
    problem: Problem,
    source: bytes,
    kind: str,
    seed: int,
    tell: Tell,
) -> Attempt:
    from shardlab.judge.judging import judge

    judgement = judge(house, problem, source, kind=kind, seed=seed, tell=tell)
    record.judged(number, judgement)
    return Attempt(number, judgement)
