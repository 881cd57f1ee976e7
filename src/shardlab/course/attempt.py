"""One answer handed to the judge: kept before it is judged, its judgement kept after."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace

from shardlab._text.nearest import nearest_name
from shardlab.catalogue.problem import Problem
from shardlab.course.store import Record
from shardlab.course.submission import Submission
from shardlab.errors import UnknownSubmission
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.sandbox.process import Level, ProcessLimits, SandboxedProcess, SandboxPool

Tell = Callable[[CaseResult], None]
# Too many to be tried by an answer that has seen one case, and what a database can still keep.
_SEED_BITS = 63


def record_submission(
    record: Record, problem: Problem, source: bytes, *, kind: str, seed: int | None = None
) -> Submission:
    """Keep an answer; hidden cases come from a seed that is drawn here, unless one is given."""
    from shardlab.judge.judge import EXAMPLES_SEED

    drawn = secrets.randbits(_SEED_BITS) if seed is None else seed
    drawn = EXAMPLES_SEED if kind == "run" else drawn
    number = record.hand_in(problem.slug, problem.content_version, source, kind=kind, seed=drawn)
    return record.submission(number)


def explain_rejected_submission(
    record: Record, problem: Problem, source: bytes, *, kind: str, seed: int | None = None
) -> Judgement | None:
    """Return the judgement of bytes that are no answer, before any process is started for it.

    None for everything that must be executed. One that is too large is not kept.
    """
    from shardlab.judge.submission_source import MAX_BYTES, read_submission

    if not isinstance(read_submission(source), Verdict):
        return None
    if len(source) > MAX_BYTES:
        judgement = _of_nothing(problem, source, kind, seed or 0)
        return replace(judgement, notes=("A file as large as this is not kept.",))
    submission = record_submission(record, problem, source, kind=kind, seed=seed)
    judgement = _of_nothing(problem, source, kind, submission.seed)
    record.judged(submission.number, judgement)
    return judgement


def _of_nothing(problem: Problem, source: bytes, kind: str, seed: int) -> Judgement:
    from shardlab.judge.judge import judge

    return replace(judge(_NobodyHome(), problem, source, kind=kind, seed=seed), level="")


class _NobodyHome:
    """A house for what needs no guest."""

    level: Level = "C"

    def start_process(self, role: str, limits: ProcessLimits) -> SandboxedProcess:
        raise AssertionError("an answer that cannot be read was about to be executed")

    def close(self) -> None:
        pass


def judge_submission(
    record: Record,
    house: SandboxPool,
    problem: Problem,
    submission: Submission,
    tell: Tell = lambda result: None,
) -> Judgement:
    """Judge a submission as it was handed in, the same answer with the same seed, and keep both.

    What ends the judging early (a kill, an exception from `tell`) leaves it unfinished; it can be
    judged again at any time.
    """
    from shardlab.judge.judge import judge

    source = record.source(submission.number)
    kind, seed = submission.kind, submission.seed
    judgement = judge(house, problem, source, kind=kind, seed=seed, on_case=tell)
    record.judged(submission.number, judgement)
    return judgement


def replay_case(
    house: SandboxPool, problem: Problem, source: bytes, *, kind: str, seed: int, case: str
) -> Judgement:
    """Judge one case alone, named as a verdict names it (data=4), or with its part (2, data=4).

    It is not kept: one case is no attempt. Raises `UnknownSubmission`.
    """
    from shardlab.judge.cases import make_cases
    from shardlab.judge.judge import replay_case

    wanted = case.strip().lower().removeprefix("part ")
    known = {}
    for part in problem.parts:
        for each in make_cases(part, seed, 1):
            here = (part.number, each.number)
            for name in (f"{part.number}, {each.name}", f"{part.number}.{each.number}", each.name):
                known[name.lower()] = here
    if wanted not in known:
        near = nearest_name(wanted, known)
        raise UnknownSubmission(
            f"'{problem.slug}' has no case '{case}'.",
            where=str(problem.folder),
            fix=f"'{near}', the nearest name." if near else "a name from the judgement.",
        )
    number = known[wanted]
    return replay_case(
        house, problem, source, kind=kind, seed=seed, part=number[0], number=number[1]
    )
