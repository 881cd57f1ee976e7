"""Practice as JSON: problems, drafts, submissions, hints and solutions; used by the pages too."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, HTTPException, Path, Query, Request
from pydantic import BaseModel, Field, StringConstraints

from shardlab.catalogue.problem import Problem
from shardlab.course.progress import ProblemProgress, list_progress
from shardlab.course.store import Draft, Progress, Submission
from shardlab.course.workbook import Workbook
from shardlab.errors import UnknownSubmission
from shardlab.judge.judgement import Judgement
from shardlab.judge.results_json import results_json
from shardlab.judge.submission_source import MAX_BYTES
from shardlab.server.api.api_models import ERROR_RESPONSES, ApiModel, JobView
from shardlab.server.api.job_routes import job_view, submit_job
from shardlab.server.jobs.queue import QueueFull
from shardlab.server.pages.practice_list import ListFilter
from shardlab.server.pages.practice_problem import find_rejected, submit_source
from shardlab.server.practice.judging import JudgingState, judging_status, queue_submission
from shardlab.server.practice.problem_view import problem_snapshot, text_revision, view_editor
from shardlab.server.practice.workbooks import (
    find_problem,
    find_submission,
    jobs_of,
    require_person,
    workbook_of,
)

router = APIRouter(prefix="/api/v1/practice", tags=["practice"], responses=ERROR_RESPONSES)

Slug = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9-]{0,99}$")]
SubmissionNumber = Annotated[int, Path(ge=1, le=2**53)]
Status = Literal["solved", "tried", "open", "locked"]
ProgramText = Annotated[str, StringConstraints(max_length=MAX_BYTES)]


class ProblemSummary(BaseModel):
    """One problem of the list."""

    slug: str
    title: str
    track: str
    difficulty: str
    tags: list[str]
    status: Status
    missing: list[str] = Field(description="Slugs of prerequisites that are not solved yet.")
    is_next: bool
    is_changed: bool = Field(description="The task changed since it was solved.")


class PartView(BaseModel):
    """One function to write."""

    number: int
    name: str
    call: str
    kind: Literal["program", "value"]


class ProblemDetail(ProblemSummary):
    """A problem with its texts and the person's progress."""

    content_version: int
    statement: str = Field(description="Markdown.")
    starter: str
    parts: list[PartView]
    n_hints: int
    hints: list[str] = Field(description="Those that were shown, as Markdown.")
    is_solution_open: bool
    source: str = Field(description="What the person worked on last, or the starter.")


class DraftView(BaseModel):
    """What the editor holds, not submitted yet."""

    problem: str
    source: str
    saved: str = Field(description="UTC.")
    revision: str = Field(description="Of the text; for the header If-Match of the next change.")


class DraftBody(ApiModel):
    """A text to store as the draft of a problem."""

    source: ProgramText


class SubmitBody(ApiModel):
    """A program to judge."""

    source: ProgramText
    kind: Literal["run", "submit"] = Field(
        default="submit", description="run: the examples; submit: all cases."
    )


class CaseBody(ApiModel):
    """A case of a submission: by its part and its number in the part."""

    part: int = Field(ge=1, le=100)
    case: int = Field(ge=0, le=1000)


class DebugBody(ApiModel):
    """A case to step through."""

    case: Annotated[str, StringConstraints(max_length=200)] = Field(
        default="", description="Such as `example 2, data=4`; empty: the minimal failing case."
    )


class SubmissionView(BaseModel):
    """A submission: what was submitted, when, and what came of it."""

    number: int
    problem: str
    kind: Literal["run", "submit"]
    when: str = Field(description="UTC.")
    seed: int | None = Field(description="Of its hidden cases; null for the examples.")
    state: JudgingState
    code: str = Field(description="Of the verdict; empty until it is judged.")
    passed: bool
    counts: bool = Field(description="Whether it is an attempt; a failure of the judge is none.")
    job: JobView | None = None


class SubmissionDetail(SubmissionView):
    """A submission with its source and its judgement."""

    source: str
    judgement: dict[str, Any] | None = Field(
        default=None, description="As `shardlab practice submit --json` writes it."
    )


class HintsView(BaseModel):
    """The hints that were shown so far."""

    hints: list[str]
    n_hints: int


class SolutionBody(BaseModel):
    """The solution; null until a submission passes or it is requested a second time."""

    source: str | None
    n_requests: int


# ----------------------------------------------------------------------------------------- problems


@router.get("/problems")
def list_problems(
    request: Request,
    q: Annotated[str, Query(max_length=200)] = "",
    difficulty: Annotated[str, Query(max_length=20)] = "",
    status: Annotated[str, Query(max_length=20)] = "",
    tag: Annotated[str, Query(max_length=60)] = "",
) -> list[ProblemSummary]:
    """Return all problems in order, or those that match."""
    wanted = ListFilter(q=q.strip(), difficulty=difficulty, status=status, tag=tag)
    rows = workbook_of(request).list_progress()
    return [ProblemSummary(**_summary(row)) for row in rows if wanted.matches(row)]


@router.get("/problems/{slug}")
def show_problem(request: Request, slug: Slug) -> ProblemDetail:
    """Return a problem with its texts."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    snapshot = problem_snapshot(workbook, slug)
    rows = list_progress(workbook.catalogue, snapshot.progress)
    row = next(row for row in rows if row.problem.slug == slug)
    is_local: bool = request.app.state.settings.is_local
    editor = view_editor(workbook, problem, snapshot, reads_files=is_local)
    return ProblemDetail(
        **_summary(row),
        content_version=problem.content_version,
        statement=problem.page,
        starter=editor.starter,
        parts=[
            PartView(number=part.number, name=part.name, call=part.call, kind=part.kind)
            for part in problem.parts
        ],
        n_hints=len(problem.hints),
        hints=_shown_hints(workbook, problem),
        is_solution_open=workbook.has_solution_access(problem),
        source=editor.source,
    )


def _summary(row: ProblemProgress) -> dict[str, Any]:
    problem = row.problem
    return {
        "slug": problem.slug,
        "title": problem.title,
        "track": row.track.folder,
        "difficulty": problem.difficulty,
        "tags": list(problem.tags),
        "status": row.status,
        "missing": list(row.missing),
        "is_next": row.is_next,
        "is_changed": row.is_changed,
    }


@router.get("/problems/{slug}/draft")
def show_draft(request: Request, slug: Slug) -> DraftView:
    """Return the draft of a problem; 404 if there is none."""
    workbook = workbook_of(request)
    draft = workbook.store.load_draft(find_problem(workbook, slug).slug)
    if draft is None:
        raise HTTPException(404, "There is no draft of this problem.")
    return _draft_view(draft)


@router.put(
    "/problems/{slug}/draft",
    responses={412: {"description": "Another tab or program has changed the text since."}},
)
def save_draft(
    request: Request,
    slug: Slug,
    body: DraftBody,
    if_match: Annotated[str, Header(max_length=100)] = "",
) -> DraftView:
    """Store the draft of a problem; with If-Match only if its text is still that revision."""
    require_person(request)
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    snapshot = problem_snapshot(workbook, slug)
    source = _storable_text(body.source)
    draft: Draft | None
    if if_match:
        is_local: bool = request.app.state.settings.is_local
        editor = view_editor(workbook, problem, snapshot, reads_files=is_local)
        # The same text is no conflict, such as a request that is repeated after a lost response.
        is_current = if_match.strip('"') == editor.revision or source == editor.source
        seen = snapshot.drafts.get(slug)
        draft = workbook.store.replace_draft(seen, slug, source) if is_current else None
        if draft is None:
            raise HTTPException(412, "This draft was changed in another tab or on another device.")
    else:
        draft = workbook.store.save_draft(slug, source)
    if snapshot.latest_problem != slug:
        workbook.store.record_start(slug)
    return _draft_view(draft)


def _draft_view(draft: Draft) -> DraftView:
    return DraftView(
        problem=draft.problem,
        source=draft.source,
        saved=draft.saved_when,
        revision=text_revision(draft.source),
    )


@router.delete("/problems/{slug}/draft", status_code=204)
def delete_draft(request: Request, slug: Slug) -> None:
    """Remove the draft of a problem."""
    require_person(request)
    workbook = workbook_of(request)
    workbook.store.delete_draft(find_problem(workbook, slug).slug)


@router.get("/problems/{slug}/hints")
def show_hints(request: Request, slug: Slug) -> HintsView:
    """Return the hints that were shown so far."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    return HintsView(hints=_shown_hints(workbook, problem), n_hints=len(problem.hints))


@router.post("/problems/{slug}/hints")
def show_next_hint(request: Request, slug: Slug) -> HintsView:
    """Show one more hint, and record it."""
    require_person(request)
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    workbook.next_hint(problem)
    return HintsView(hints=_shown_hints(workbook, problem), n_hints=len(problem.hints))


def _shown_hints(workbook: Workbook, problem: Problem) -> list[str]:
    return [hint.text for hint in workbook.used_hints(problem)]


@router.post("/problems/{slug}/solution")
def request_solution(request: Request, slug: Slug) -> SolutionBody:
    """Return the solution after a pass or at the second request; each request is recorded."""
    require_person(request)
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    source = workbook.request_solution(problem)
    progress: Progress = workbook.store.progress_of(slug)
    return SolutionBody(source=source, n_requests=progress.solution_requests)


# -------------------------------------------------------------------------------------- submissions


@router.post("/problems/{slug}/submissions", status_code=202)
def submit_program(request: Request, slug: Slug, body: SubmitBody) -> SubmissionView:
    """Store a program and queue it for judging."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    source = _storable_text(body.source).encode()
    outcome = submit_source(request, workbook, problem, source, body.kind)
    if isinstance(outcome, Judgement):
        outcome = find_rejected(workbook, slug, outcome)
    return SubmissionView(**_submission_fields(request, workbook, outcome))


@router.get("/submissions")
def list_submissions(
    request: Request,
    problem: Annotated[str | None, Query(max_length=100)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> list[SubmissionView]:
    """Return the newest submissions, newest first."""
    require_person(request)
    workbook = workbook_of(request)
    newest = workbook.store.list_submissions(problem)[::-1][:limit]
    return [SubmissionView(**_submission_fields(request, workbook, row)) for row in newest]


@router.get("/submissions/{number}")
def show_submission(request: Request, number: SubmissionNumber) -> SubmissionDetail:
    """Return a submission with its source and its judgement."""
    workbook = workbook_of(request)
    submission = _find_any_submission(workbook, number)
    judgement = workbook.store.load_judgement(number) if submission.is_finished else None
    return SubmissionDetail(
        **_submission_fields(request, workbook, submission),
        source=workbook.store.load_source(number).decode("utf-8", "replace"),
        judgement=results_json(judgement) if judgement is not None else None,
    )


@router.post("/submissions/{number}/judge", status_code=202)
def judge_again(request: Request, number: SubmissionNumber) -> SubmissionView:
    """Judge a submission whose judging was interrupted, exactly as it was submitted."""
    person = require_person(request)
    workbook = workbook_of(request)
    submission = _find_any_submission(workbook, number)
    if submission.is_finished and submission.counts:
        raise HTTPException(409, "This submission is judged already.")
    try:
        queue_submission(jobs_of(request), person, submission)
    except QueueFull as error:
        raise HTTPException(429 if error.is_of_person else 503, str(error)) from None
    return SubmissionView(**_submission_fields(request, workbook, submission))


@router.post("/submissions/{number}/replay", status_code=202)
def replay_case(request: Request, number: SubmissionNumber, body: CaseBody) -> JobView:
    """Judge one case once more; the job's result has the judgement, and nothing is stored."""
    person = require_person(request)
    workbook = workbook_of(request)
    submission = _find_any_submission(workbook, number)
    if body.part > len(find_problem(workbook, submission.problem).parts):
        raise HTTPException(404, "The problem has no such part.")
    payload = {"submission": number, "part": body.part, "case": body.case}
    return submit_job(request, person, "replay", payload)


@router.post("/submissions/{number}/debug", status_code=202)
def debug_case(request: Request, number: SubmissionNumber, body: DebugBody) -> JobView:
    """Record a case step by step; the recording has the id of the job."""
    person = require_person(request)
    _find_any_submission(workbook_of(request), number)
    payload = {"submission": number, "case": body.case}
    return submit_job(request, person, "debug_case", payload)


@router.get("/export")
def export_progress(request: Request) -> dict[str, Any]:
    """Return progress and every submission with its source and its judgement."""
    require_person(request)
    return workbook_of(request).store.export_data()


def _find_any_submission(workbook: Workbook, number: int) -> Submission:
    try:
        problem = workbook.store.get_submission(number).problem
    except UnknownSubmission:
        raise HTTPException(404, f"You have no submission {number}.") from None
    return find_submission(workbook, problem, number)


def _submission_fields(
    request: Request, workbook: Workbook, submission: Submission
) -> dict[str, Any]:
    jobs = jobs_of(request)
    status = judging_status(jobs, require_person(request), workbook, submission)
    if status.state == "judged" and not submission.is_finished:
        submission = workbook.store.get_submission(submission.number)
    return {
        "number": submission.number,
        "problem": submission.problem,
        "kind": submission.kind,
        "when": submission.when,
        "seed": submission.seed if submission.kind == "submit" else None,
        "state": status.state,
        "code": submission.code,
        "passed": submission.passed,
        "counts": submission.counts,
        "job": job_view(status.job, jobs) if status.job is not None else None,
    }


def _storable_text(source: str) -> str:
    """Return a text that can be encoded: JSON can hold half of a surrogate pair."""
    return source.encode("utf-8", "replace").decode("utf-8")
