"""One attempt: a submission is stored, judged, and its judgement stored."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from shardlab._text.nearest import nearest_name
from shardlab.catalogue.problem import Problem
from shardlab.course.store import PracticeStore, Submission
from shardlab.errors import StoreError, UnknownSubmission
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.sandbox.process import Level, ProcessLimits, SandboxedProcess, SandboxPool

if TYPE_CHECKING:
    from shardlab.judge.cases import Case

ReportCase = Callable[[CaseResult], None]
ReportProgress = Callable[[dict[str, Any]], None]
# Too many seeds for a submission to find its own by trying them against the case that it sees, and
# the most that a signed SQLite integer holds.
_SEED_BITS = 63


def record_submission(
    store: PracticeStore, problem: Problem, source: bytes, *, kind: str, seed: int | None = None
) -> Submission:
    """Store a submission with the seed of its hidden cases, a new random one unless given.

    One that cannot be stored can be judged all the same: it has no number, and says why.
    """
    from shardlab.judge.judge import EXAMPLES_SEED

    case_seed = secrets.randbits(_SEED_BITS) if seed is None else seed
    # The examples are public, and the same on every run.
    case_seed = EXAMPLES_SEED if kind == "run" else case_seed
    try:
        number = store.add_submission(
            problem.slug, problem.content_version, source, kind=kind, seed=case_seed
        )
        return store.get_submission(number)
    except StoreError as error:
        return Submission(
            number=0,
            problem=problem.slug,
            content_version=problem.content_version,
            kind=kind,
            seed=case_seed,
            when="",
            store_error=_error_text(error),
        )


def _error_text(error: StoreError) -> str:
    return f"{error.what} {error.where}. Try: {error.fix}"


def _save_judgement(
    store: PracticeStore, submission: Submission, judgement: Judgement
) -> Judgement:
    """Store a judgement, and return it; with a note if it cannot be stored."""
    reason = submission.store_error
    if not reason:
        try:
            store.save_judgement(submission.number, judgement)
        except StoreError as error:
            reason = _error_text(error)
    if not reason:
        return judgement
    note = f"This judgement is not stored. {reason}"
    return replace(judgement, notes=(*judgement.notes, note))


def explain_rejected_submission(
    store: PracticeStore, problem: Problem, source: bytes, *, kind: str, seed: int | None = None
) -> Judgement | None:
    """Return the judgement of bytes that are not a Python source, without starting a process.

    Return None for a source that can be executed. One that is too large is not stored.
    """
    from shardlab.judge.submission_source import MAX_BYTES, read_submission

    if not isinstance(read_submission(source), Verdict):
        return None
    if len(source) > MAX_BYTES:
        judgement = _judge_without_sandbox(problem, source, kind, seed or 0)
        return replace(judgement, notes=("A file of this size is not stored.",))
    submission = record_submission(store, problem, source, kind=kind, seed=seed)
    judgement = _judge_without_sandbox(problem, source, kind, submission.seed)
    return _save_judgement(store, submission, judgement)


def _judge_without_sandbox(problem: Problem, source: bytes, kind: str, seed: int) -> Judgement:
    from shardlab.judge.judge import judge

    return replace(judge(_NoSandboxPool(), problem, source, kind=kind, seed=seed), level="")


class _NoSandboxPool:
    """A sandbox pool for submissions that are rejected before execution."""

    level: Level = "C"
    confinement = ""

    def start_process(self, role: str, limits: ProcessLimits) -> SandboxedProcess:
        raise AssertionError("a submission that cannot be read was about to be executed")

    def close(self) -> None:
        pass


def judge_submission(
    store: PracticeStore,
    pool: SandboxPool,
    problem: Problem,
    submission: Submission,
    report_case: ReportCase = lambda result: None,
    *,
    source: bytes | None = None,
    report_progress: ReportProgress | None = None,
) -> Judgement:
    """Judge a submission with its seed, and store the judgement; a note says if that fails.

    `source` is needed for a submission that is not stored itself. `report_progress` gets the events
    of `judge/progress.py`, which are JSON; the last one follows after the judgement is stored. If
    judging ends early (a kill, an exception from `report_case`, a cancelled pool), a stored one
    stays unfinished and can be judged again at any time.
    """
    from shardlab.judge.judge import judge
    from shardlab.judge.progress import JudgeProgress

    source = store.load_source(submission.number) if source is None else source
    kind, seed = submission.kind, submission.seed
    progress = JudgeProgress(problem, kind=kind, seed=seed)
    send_event = report_progress or (lambda event: None)

    def report(result: CaseResult) -> None:
        report_case(result)
        send_event(progress.case_event(result))

    send_event(progress.started_event())
    judgement = judge(pool, problem, source, kind=kind, seed=seed, on_case=report)
    judgement = _save_judgement(store, submission, judgement)
    send_event(progress.judged_event(judgement))
    return judgement


def judge_case(
    pool: SandboxPool, problem: Problem, source: bytes, *, kind: str, seed: int, case: str
) -> Judgement:
    """Judge one case alone, by the name in a verdict (data=4), or with its part (2, data=4).

    Nothing is stored: one case is not an attempt. Raises `UnknownSubmission`.
    """
    from shardlab.judge.judge import replay_case

    found = find_case(problem, kind=kind, seed=seed, name=case)
    return replay_case(
        pool, problem, source, kind=kind, seed=seed, part=found.part.number, number=found.number
    )


def find_case(problem: Problem, *, kind: str, seed: int, name: str) -> Case:
    """Return the case of a judgement by its name (data=4), or with its part (2, data=4; 2.3).

    Raises `UnknownSubmission`.
    """
    from shardlab.judge.judge import EXAMPLES_SEED, select_cases

    key = name.strip().lower().removeprefix("part ")
    cases: dict[str, Case] = {}
    is_example = kind == "run"
    seed = EXAMPLES_SEED if is_example else seed
    for part in problem.parts:
        for case in select_cases(part, seed, is_example):
            cases[f"{part.number}, {case.name}".lower()] = case
            cases[f"{part.number}.{case.number}"] = case
            cases[case.name.lower()] = case
    if key not in cases:
        match = nearest_name(key, cases)
        raise UnknownSubmission(
            f"'{problem.slug}' has no case '{name}'.",
            where=f"problem '{problem.slug}'",
            fix=f"Did you mean '{match}'?" if match else "use a name from the judgement.",
        )
    return cases[key]
