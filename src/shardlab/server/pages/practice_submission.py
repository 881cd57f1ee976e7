"""One submission: its source, what came of it, and what changed since the one before.

Also the events while it is judged, its pictures, and the export of everything.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from markupsafe import Markup
from starlette.responses import StreamingResponse

from shardlab.course.devices_block import DevicesBlock
from shardlab.course.devices_svg import devices_svg
from shardlab.course.store import Submission
from shardlab.course.workbook import Workbook
from shardlab.judge.counterexample_svg import counterexample_svg
from shardlab.judge.judgement import Judgement
from shardlab.render.svg import picture_svg
from shardlab.server.event_streams import event_streams, refusal_lines
from shardlab.server.form_reading import Form, text_field
from shardlab.server.jobs.queue import Job, JobKind, JsonObject, QueueFull
from shardlab.server.page_rendering import practice_path, render_page, render_text
from shardlab.server.pages.practice_problem import ResultPage, make_result
from shardlab.server.person import Person
from shardlab.server.practice.judgement_view import view_judgement
from shardlab.server.practice.judging import JudgingStatus, judging_status, queue_submission
from shardlab.server.practice.problem_view import (
    DiffLine,
    ResultView,
    SubmissionRow,
    diff_lines,
    view_submission,
)
from shardlab.server.practice.statement_html import highlight_python, parse_pictures
from shardlab.server.practice.workbooks import (
    find_problem,
    find_submission,
    jobs_of,
    person_of,
    require_person,
    workbook_of,
)
from shardlab.sharding.layout_render import page_picture

router = APIRouter(include_in_schema=False)

_PICTURE_WIDTH = 660.0  # pixels: of the lesson's column, so that its text stays readable
# A picture is a document of its own: it may have its own styles, and nothing else.
_PICTURE_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    "cache-control": "private, max-age=3600",
}


@dataclass(frozen=True, kw_only=True)
class SubmissionPage:
    """The context of practice/submission.html."""

    title: str
    slug: str
    problem_title: str
    submission: SubmissionRow
    content_version: int
    is_outdated: bool  # the task has changed since
    source_html: Markup
    source: str
    result: ResultView
    compared: SubmissionRow | None  # the one before, or another that was picked
    diff: tuple[DiffLine, ...]
    others: tuple[SubmissionRow, ...]  # to compare with, newest first
    earlier: int | None
    later: int | None


@dataclass(frozen=True, kw_only=True)
class WaitingPage:
    """The context of practice/waiting.html: a job about one case."""

    title: str
    slug: str
    number: int
    job: Job
    failure_title: str


@dataclass(frozen=True, kw_only=True)
class ReplayPage:
    """The context of practice/replay.html."""

    slug: str
    number: int
    result: ResultView
    title: str = "One case"


# --------------------------------------------------------------------------------------- the page


@router.get("/practice/{slug}/submissions/{number}")
def show_submission(
    request: Request, slug: str, number: int, compare: int | None = None
) -> HTMLResponse:
    """Show a submission: source, result, and the difference to another one."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    submission = find_submission(workbook, slug, number)
    numbers = [row.number for row in workbook.store.list_submissions(slug)]
    index = numbers.index(number)
    other = _find_compared(workbook, slug, numbers, index, compare)
    source = _source_text(workbook, number)
    page = SubmissionPage(
        title=f"Submission {number}: {problem.title}",
        slug=slug,
        problem_title=problem.title,
        submission=view_submission(submission),
        content_version=submission.content_version,
        is_outdated=submission.content_version != problem.content_version,
        source_html=highlight_python(source),
        source=source,
        result=make_result(request, workbook, submission),
        compared=view_submission(other) if other else None,
        diff=diff_lines(_source_text(workbook, other.number), source) if other else (),
        others=tuple(
            view_submission(row)
            for row in reversed(workbook.store.list_submissions(slug))
            if row.number != number
        ),
        earlier=numbers[index - 1] if index else None,
        later=numbers[index + 1] if index + 1 < len(numbers) else None,
    )
    return render_page(request, "practice/submission.html", page)


def _find_compared(
    workbook: Workbook, slug: str, numbers: list[int], index: int, compare: int | None
) -> Submission | None:
    if compare is not None:
        return find_submission(workbook, slug, compare)
    return workbook.store.get_submission(numbers[index - 1]) if index else None


def _source_text(workbook: Workbook, number: int) -> str:
    return workbook.store.load_source(number).decode("utf-8", "replace")


@router.get("/practice/{slug}/submissions/{number}/source.py")
def download_source(request: Request, slug: str, number: int) -> Response:
    """Return the source, byte for byte."""
    workbook = workbook_of(request)
    submission = find_submission(workbook, slug, number)
    name = f"{submission.problem}-{submission.number}.py"
    return Response(
        workbook.store.load_source(number),
        media_type="text/plain; charset=utf-8",
        headers={"content-disposition": f'attachment; filename="{name}"'},
    )


# ------------------------------------------------------------------------------ while it is judged


@router.get("/practice/{slug}/submissions/{number}/result")
def show_result(request: Request, slug: str, number: int) -> HTMLResponse:
    """Show only what came of a submission."""
    workbook = workbook_of(request)
    result = make_result(request, workbook, find_submission(workbook, slug, number))
    return render_page(request, "practice/_result.html", ResultPage(slug=slug, result=result))


@router.get("/practice/{slug}/submissions/{number}/events")
async def stream_result(request: Request, slug: str, number: int) -> Response:
    """Send the result as HTML whenever it changes, until it is judged."""
    person = require_person(request)
    workbook = await asyncio.to_thread(workbook_of, request)
    submission = await asyncio.to_thread(find_submission, workbook, slug, number)
    return StreamingResponse(
        _result_events(request, person, workbook, submission),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _result_events(
    request: Request, person: Person, workbook: Workbook, submission: Submission
) -> AsyncIterator[str]:
    jobs = jobs_of(request)
    status = await asyncio.to_thread(judging_status, jobs, person, workbook, submission)
    with event_streams(request).open(person, request) as refusal:
        if refusal and status.is_active:
            # The extension of htmx reads `retry` only together with data.
            html = await _result_html(request, workbook, submission)
            yield refusal_lines(refusal) + _event(html)
            return
        last_html = ""
        if status.job is not None and status.is_active:
            async for job in jobs.watch(status.job.id):
                html = "" if job.has_ended else await _result_html(request, workbook, submission)
                if html not in ("", last_html):
                    last_html = html
                    yield _event(html)
    yield _event(await _result_html(request, workbook, submission))
    # The page closes the connection at this event, and does not connect again.
    yield f"event: finished\ndata: {submission.number}\n\n"


async def _result_html(request: Request, workbook: Workbook, submission: Submission) -> str:
    def render() -> str:
        newest = workbook.store.get_submission(submission.number)
        result = make_result(request, workbook, newest)
        page = ResultPage(slug=submission.problem, result=result)
        return render_text(request, "practice/_live_result.html", page)

    return await asyncio.to_thread(render)


def _event(html: str) -> str:
    lines = "".join(f"data: {line}\n" for line in html.splitlines())
    return f"{lines}\n"


@router.post("/practice/{slug}/submissions/{number}/again")
def judge_again(request: Request, slug: str, number: int, form: Form) -> Response:
    """Judge a submission whose judging was interrupted, exactly as it was submitted."""
    workbook = workbook_of(request)
    submission = find_submission(workbook, slug, number)
    person = require_person(request)
    if submission.is_finished and submission.counts:
        raise HTTPException(409, "This submission is judged already.")
    try:
        queue_submission(jobs_of(request), person, submission)
    except QueueFull as error:
        raise HTTPException(429 if error.is_of_person else 503, str(error)) from None
    return RedirectResponse(f"{practice_path(request)}/{slug}?submission={number}#result", 303)


@router.post("/practice/{slug}/submissions/{number}/cancel")
def cancel_judging(request: Request, slug: str, number: int, form: Form) -> Response:
    """End the judging of a submission; it stays stored and can be judged later."""
    workbook = workbook_of(request)
    submission = find_submission(workbook, slug, number)
    status = judging_status(jobs_of(request), require_person(request), workbook, submission)
    if status.job is not None and status.is_active:
        jobs_of(request).cancel(status.job.id)
    return RedirectResponse(f"{practice_path(request)}/{slug}?submission={number}#result", 303)


# ------------------------------------------------------------------------- one case: debug, replay


@router.post("/practice/{slug}/submissions/{number}/debug")
def open_in_debugger(request: Request, slug: str, number: int, form: Form) -> Response:
    """Record one case of a submission, step by step, and open it in the debugger.

    The field `case` names an example, such as `example 2, data=4`; without it, the minimal failing
    case is recorded. Hidden inputs are never shown.
    """
    submission = find_submission(workbook_of(request), slug, number)
    payload = {"submission": submission.number, "case": text_field(form, "case", max_bytes=200)}
    job = _submit_job(request, "debug_case", payload)
    return RedirectResponse(
        f"{practice_path(request)}/{slug}/submissions/{number}/debug/{job.id}", 303
    )


@router.get("/practice/{slug}/submissions/{number}/debug/{job_id}")
def wait_for_debugger(request: Request, slug: str, number: int, job_id: str) -> Response:
    """Show how far the recording is; when it is there, go on to the debugger."""
    job = _find_job(request, "debug_case", job_id)
    if job.state == "done":
        return RedirectResponse(f"/lab?recording={job.id}", 303)
    page = WaitingPage(
        title="Recording every step",
        slug=slug,
        number=number,
        job=job,
        failure_title="This run cannot be opened in the debugger",
    )
    return render_page(request, "practice/waiting.html", page)


@router.post("/practice/{slug}/submissions/{number}/replay")
def replay_one_case(request: Request, slug: str, number: int, form: Form) -> Response:
    """Judge one case of a submission once more."""
    workbook = workbook_of(request)
    submission = find_submission(workbook, slug, number)
    part, case = text_field(form, "part"), text_field(form, "case")
    if not (part.isdecimal() and case.isdecimal() and len(part + case) < 10):
        raise HTTPException(400, "The case is missing.")
    n_parts = len(find_problem(workbook, slug).parts)
    if not 0 < int(part) <= n_parts:
        raise HTTPException(404, f"The problem has {n_parts} parts.")
    payload = {"submission": submission.number, "part": int(part), "case": int(case)}
    job = _submit_job(request, "replay", payload)
    return RedirectResponse(
        f"{practice_path(request)}/{slug}/submissions/{number}/replay/{job.id}", 303
    )


@router.get("/practice/{slug}/submissions/{number}/replay/{job_id}")
def show_replay(request: Request, slug: str, number: int, job_id: str) -> Response:
    """Show the verdict on one case, or how far it is."""
    workbook = workbook_of(request)
    submission = find_submission(workbook, slug, number)
    job = _find_job(request, "replay", job_id)
    if job.result is None:
        page = WaitingPage(
            title="Judging one case",
            slug=slug,
            number=number,
            job=job,
            failure_title="This case cannot be judged",
        )
        return render_page(request, "practice/waiting.html", page)
    judgement = Judgement.from_json(job.result["judgement"])
    result = ResultView(
        slug=slug,
        submission=view_submission(submission),
        status=JudgingStatus(state="judged"),
        judgement=view_judgement(judgement, find_problem(workbook, slug)),
    )
    replay = ReplayPage(slug=slug, number=number, result=result)
    return render_page(request, "practice/replay.html", replay)


def _submit_job(request: Request, kind: JobKind, payload: JsonObject) -> Job:
    try:
        return jobs_of(request).submit(require_person(request).id, kind, payload)
    except QueueFull as error:
        raise HTTPException(429 if error.is_of_person else 503, str(error)) from None


def _find_job(request: Request, kind: JobKind, job_id: str) -> Job:
    person = person_of(request)
    job = jobs_of(request).queue.find(job_id[:64])
    if job is None or person is None or job.person != person.id or job.kind != kind:
        raise HTTPException(404)
    return job


# ------------------------------------------------------------------------------ pictures and export


@router.get("/practice/{slug}/pictures/{number}.svg")
def draw_picture(request: Request, slug: str, number: int) -> Response:
    """Draw one picture of a statement: a layout, or devices step by step."""
    problem = find_problem(workbook_of(request), slug)
    pictures = parse_pictures(problem.page)
    if not 0 < number <= len(pictures):
        raise HTTPException(404)
    picture = pictures[number - 1]
    if isinstance(picture, DevicesBlock):
        svg = devices_svg(picture)
    else:
        svg = picture_svg(page_picture(picture, _PICTURE_WIDTH), _PICTURE_WIDTH)
    return Response(svg, media_type="image/svg+xml", headers=_PICTURE_HEADERS)


@router.get("/practice/{slug}/submissions/{number}/counterexample.svg")
def draw_counterexample(request: Request, slug: str, number: int) -> Response:
    """Draw the minimal failing case of a submission."""
    workbook = workbook_of(request)
    submission = find_submission(workbook, slug, number)
    judgement = workbook.store.load_judgement(submission.number)
    case = judgement.counterexample if judgement is not None else None
    if case is None or not case.facts.get("outputs"):
        raise HTTPException(404, "This submission has no failing case to draw.")
    svg = counterexample_svg(case)
    return Response(svg, media_type="image/svg+xml", headers=_PICTURE_HEADERS)


@router.get("/practice/export.json")
def export_json(request: Request) -> Response:
    """Return progress and all submissions as JSON."""
    data = workbook_of(request).store.export_data()
    headers = {"content-disposition": 'attachment; filename="practice.json"'}
    return JSONResponse(json.loads(json.dumps(data)), headers=headers)


@router.get("/practice/export.zip")
def export_zip(request: Request) -> Response:
    """Return progress and all submissions, each as a file of its own."""
    body = io.BytesIO()
    workbook_of(request).store.write_zip(body)
    headers = {"content-disposition": 'attachment; filename="practice.zip"'}
    return Response(body.getvalue(), media_type="application/zip", headers=headers)
