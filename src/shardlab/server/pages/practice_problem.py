"""The page of a problem: lesson, editor and result, and everything one does there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup

from shardlab.catalogue.problem import Problem
from shardlab.course.store import PracticeSnapshot, Submission
from shardlab.course.workbook import Workbook
from shardlab.judge.judgement import Judgement
from shardlab.server.form_reading import Form, text_field
from shardlab.server.html_cache import html_cache
from shardlab.server.jobs.queue import QueueFull
from shardlab.server.page_rendering import practice_path, render_page, render_part
from shardlab.server.practice.judging import JudgingStatus, Kind, judging_status, start_judging
from shardlab.server.practice.problem_view import (
    PANELS,
    EditorView,
    Guess,
    HintView,
    Panel,
    ResultView,
    SolutionView,
    SubmissionRow,
    backup_name,
    find_next_problem,
    problem_snapshot,
    read_guesses,
    text_revision,
    view_editor,
    view_hints,
    view_result,
    view_solution,
    view_statement,
    view_submission,
)
from shardlab.server.practice.statement_html import PredictionBlock, StatementHtml
from shardlab.server.practice.workbooks import (
    find_problem,
    find_submission,
    jobs_of,
    person_of,
    require_person,
    workbook_of,
)

router = APIRouter(include_in_schema=False)

# A little above the judge's own limit, so that the judge reports a file that is too large.
MAX_SOURCE_BYTES = 512 << 10


@dataclass(frozen=True, kw_only=True)
class ProblemPage:
    """The context of practice/problem.html."""

    title: str
    slug: str
    number: int
    n_problems: int
    track_title: str
    track_anchor: str
    difficulty: str
    tags: tuple[str, ...]
    calls: tuple[tuple[str, str], ...]  # name and call of each part
    is_solved: bool
    is_changed: bool
    prerequisites: tuple[tuple[str, str], ...]  # not solved yet: slug and title
    can_submit: bool
    panel: Panel
    panels: tuple[tuple[Panel, str, str], ...]  # name, label, count
    statement: Markup
    hints: tuple[HintView, ...]
    n_hints: int
    solution: SolutionView
    submissions: tuple[SubmissionRow, ...]  # newest first
    editor: EditorView
    has_conflict: bool  # the text of this tab was not saved over that of another one
    result: ResultView | None
    next_problem: tuple[str, str] | None


@dataclass(frozen=True, kw_only=True)
class StatementArticle:
    """The context of practice/_article.html."""

    slug: str
    tags: tuple[str, ...]
    blocks: tuple[Markup | PredictionBlock, ...]
    guesses: dict[int, Guess]


@dataclass(frozen=True, kw_only=True)
class PredictionPage:
    """The context of practice/_prediction.html."""

    slug: str
    block: PredictionBlock
    guess: Guess | None


@dataclass(frozen=True, kw_only=True)
class ResultPage:
    """The context of practice/_result.html."""

    slug: str
    result: ResultView | None
    n_submissions: int | None = None  # to update the tab, after one was added
    revision: str = ""  # of the text that was submitted: the editor has it


@router.get("/practice/{slug}")
def show_problem(
    request: Request,
    slug: str,
    panel: Annotated[str, Query(max_length=20)] = "lesson",
    submission: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> HTMLResponse:
    """Show a problem with the person's own work on it."""
    page = make_problem_page(request, slug, panel, submission)
    # htmx replaces the left pane only, so that the editor and its cursor stay as they are.
    is_fragment = request.headers.get("hx-target", "").endswith("#panel")
    return render_page(
        request, "practice/_panel.html" if is_fragment else "practice/problem.html", page
    )


def make_problem_page(
    request: Request, slug: str, panel: str, number: int | None = None
) -> ProblemPage:
    """Return the page of one problem; `number` is of the submission whose result is shown."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    catalogue = workbook.catalogue
    snapshot = problem_snapshot(workbook, slug)
    own = snapshot.progress_of(slug)
    solved = {name for name, record in snapshot.progress.items() if record.is_solved}
    missing = catalogue.missing_prerequisites(slug, solved)
    track = catalogue.track_of(slug)
    statement = view_statement(problem, practice_path(request))
    submissions = snapshot.submissions
    shown = find_submission(workbook, slug, number) if number else None
    shown = shown or (submissions[-1] if submissions else None)
    hints = view_hints(problem, own)
    counts = {
        "hints": f"{len(hints)}/{len(problem.hints)}",
        "submissions": str(len(submissions) or ""),
    }
    return ProblemPage(
        title=problem.title,
        slug=slug,
        number=catalogue.slugs.index(slug) + 1,
        n_problems=len(catalogue.slugs),
        track_title=track.title,
        track_anchor=track.folder,
        difficulty=problem.difficulty,
        tags=problem.tags,
        calls=tuple((part.name, part.call) for part in problem.parts),
        is_solved=own.is_solved,
        is_changed=own.is_solved and own.solved_version != problem.content_version,
        prerequisites=tuple((name, catalogue.load_problem(name).title) for name in missing),
        can_submit=person_of(request) is not None,
        panel=panel if panel in dict(PANELS) else "lesson",
        panels=tuple((name, label, counts.get(name, "")) for name, label in PANELS),
        statement=_render_article(request, problem, statement),
        hints=hints,
        n_hints=len(problem.hints),
        solution=view_solution(problem, own),
        submissions=tuple(map(view_submission, reversed(submissions))),
        editor=_view_editor(request, workbook, problem, snapshot),
        has_conflict=request.query_params.get("conflict") == "1",
        result=make_result(request, workbook, shown) if shown else None,
        next_problem=find_next_problem(workbook, snapshot.progress, slug),
    )


def _view_editor(
    request: Request, workbook: Workbook, problem: Problem, snapshot: PracticeSnapshot
) -> EditorView:
    is_local: bool = request.app.state.settings.is_local
    return view_editor(workbook, problem, snapshot, reads_files=is_local)


def make_result(request: Request, workbook: Workbook, submission: Submission) -> ResultView:
    """Return what came of a submission, or how far it is."""
    person = person_of(request)
    status = JudgingStatus(state="judged" if submission.is_finished else "stopped")
    if person is not None:
        status = judging_status(jobs_of(request), person, workbook, submission)
        if status.state == "judged" and not submission.is_finished:
            submission = workbook.store.get_submission(submission.number)
    return view_result(workbook, submission, status)


def _render_article(request: Request, problem: Problem, statement: StatementHtml) -> Markup:
    """Return the lesson with its questions; without a guess it is the same for everybody."""
    path = practice_path(request)
    guesses = read_guesses(statement, dict(request.query_params))
    article = StatementArticle(
        slug=problem.slug, tags=problem.tags, blocks=statement.blocks, guesses=guesses
    )

    def render() -> Markup:
        return render_part("practice/_article.html", article, path)

    if guesses:
        return render()
    # The blocks are those of one text, because they come from a cache by the text.
    key = ("article", path, problem.slug, problem.page, problem.tags)
    return html_cache(request).find_or_render(key, render)


@router.get("/practice/{slug}/predictions/{number}")
def show_prediction(request: Request, slug: str, number: int) -> HTMLResponse:
    """Show one question with the answer to the guess in the query string."""
    problem = find_problem(workbook_of(request), slug)
    statement = view_statement(problem, practice_path(request))
    blocks = [block for block in statement.predictions if block.number == number]
    if not blocks:
        raise HTTPException(404)
    guesses = read_guesses(statement, dict(request.query_params))
    page = PredictionPage(slug=slug, block=blocks[0], guess=guesses.get(number))
    return render_page(request, "practice/_prediction.html", page)


# ----------------------------------------------------------------------------------- run and submit


@router.post("/practice/{slug}/run")
def run_examples(request: Request, slug: str, form: Form) -> Response:
    """Judge the text of the editor on the examples."""
    return _judge_form(request, slug, form, "run")


@router.post("/practice/{slug}/submit")
def submit_solution(request: Request, slug: str, form: Form) -> Response:
    """Judge the text of the editor on all cases."""
    return _judge_form(request, slug, form, "submit")


def read_source(form: Form) -> str:
    """Return the program in a form; browsers send line ends as CR LF."""
    source = text_field(form, "source", max_bytes=MAX_SOURCE_BYTES)
    return source.replace("\r\n", "\n")


def _judge_form(request: Request, slug: str, form: Form, kind: Kind) -> Response:
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    source = read_source(form).encode("utf-8", "surrogatepass")
    outcome = submit_source(request, workbook, problem, source, kind)
    if isinstance(outcome, Judgement):
        outcome = find_rejected(workbook, slug, outcome)
    if "hx-request" not in request.headers:
        return RedirectResponse(f"{practice_path(request)}/{slug}#result", 303)
    page = ResultPage(
        slug=slug,
        result=make_result(request, workbook, outcome),
        n_submissions=len(workbook.store.list_submissions(slug)),
        revision=text_revision(source.decode("utf-8", "replace")),
    )
    return render_page(request, "practice/_new_result.html", page)


def find_rejected(workbook: Workbook, slug: str, judgement: Judgement) -> Submission:
    """Return the submission of a text that is no Python, which was judged without a worker.

    Raises 413 for one that is too large: it is not stored.
    """
    submissions = workbook.store.list_submissions(slug)
    if not submissions or judgement.notes:
        raise HTTPException(413, judgement.verdict.what)
    return submissions[-1]


def submit_source(
    request: Request, workbook: Workbook, problem: Problem, source: bytes, kind: Kind
) -> Submission | Judgement:
    """Store and queue a program. Raises 401, 413, 429 or 503; then nothing is stored."""
    person = require_person(request)
    if len(source) > MAX_SOURCE_BYTES:
        raise HTTPException(413, f"The program has more than {MAX_SOURCE_BYTES:,} bytes.")
    try:
        outcome = start_judging(jobs_of(request), person, workbook, problem, source, kind=kind)
    except QueueFull as error:
        status = 429 if error.is_of_person else 503
        raise HTTPException(status, f"Not submitted. {error}") from None
    if isinstance(outcome, Submission) and outcome.store_error:
        raise HTTPException(503, f"Not submitted. {outcome.store_error}")
    return outcome


# ------------------------------------------------------------------------- drafts, hints, solution


@router.post("/practice/{slug}/draft")
def save_draft(request: Request, slug: str, form: Form) -> Response:
    """Store the text of the editor; the page does so by itself if scripts run."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    workbook.store.record_start(problem.slug)
    snapshot = problem_snapshot(workbook, problem.slug)
    source = read_source(form)
    editor = _view_editor(request, workbook, problem, snapshot)
    is_current = text_field(form, "revision") in ("", editor.revision)
    seen = snapshot.drafts.get(slug)
    page = f"{practice_path(request)}/{slug}"
    if is_current and workbook.store.replace_draft(seen, slug, source) is not None:
        return RedirectResponse(f"{page}#code", 303)
    # Another tab has stored another text: this one is the backup, so that none is lost.
    workbook.store.save_draft(backup_name(slug), source)
    return RedirectResponse(f"{page}?conflict=1#code", 303)


@router.post("/practice/{slug}/reset")
def reset_editor(request: Request, slug: str, form: Form) -> Response:
    """Put the starter into the editor; what was there can be restored."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    source = read_source(form) if "source" in form else ""
    starter = problem.read_text("starter.py")
    if not source:
        snapshot = problem_snapshot(workbook, slug)
        source = _view_editor(request, workbook, problem, snapshot).source
    if source != starter:
        workbook.store.save_draft(backup_name(slug), source)
    workbook.store.save_draft(slug, starter)
    return RedirectResponse(f"{practice_path(request)}/{slug}#code", 303)


@router.post("/practice/{slug}/restore")
def restore_backup(request: Request, slug: str, form: Form) -> Response:
    """Put back what the last reset replaced."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    backup = workbook.store.load_draft(backup_name(problem.slug))
    if backup is None:
        raise HTTPException(404, "There is nothing to restore.")
    workbook.store.save_draft(slug, backup.source)
    workbook.store.delete_draft(backup_name(slug))
    return RedirectResponse(f"{practice_path(request)}/{slug}#code", 303)


@router.post("/practice/{slug}/load")
def load_submission(request: Request, slug: str, form: Form) -> Response:
    """Put an earlier submission into the editor."""
    workbook = workbook_of(request)
    problem = find_problem(workbook, slug)
    text = text_field(form, "submission", max_bytes=20)
    if not text.isdecimal():
        raise HTTPException(400, "The number of the submission is missing.")
    submission = find_submission(workbook, slug, int(text))
    editor = _view_editor(request, workbook, problem, problem_snapshot(workbook, slug))
    source = workbook.store.load_source(submission.number).decode("utf-8", "replace")
    if source != editor.source and not editor.is_starter:
        workbook.store.save_draft(backup_name(slug), editor.source)
    workbook.store.save_draft(slug, source)
    return RedirectResponse(f"{practice_path(request)}/{slug}#code", 303)


@router.post("/practice/{slug}/hint")
def show_next_hint(request: Request, slug: str, form: Form) -> Response:
    """Show one more hint, and record it."""
    workbook = workbook_of(request)
    workbook.next_hint(find_problem(workbook, slug))
    return _show_panel(request, slug, "hints")


@router.post("/practice/{slug}/solution")
def request_solution(request: Request, slug: str, form: Form) -> Response:
    """Show the solution after a pass or at the second request, and record the request."""
    workbook = workbook_of(request)
    workbook.request_solution(find_problem(workbook, slug))
    return _show_panel(request, slug, "solution")


def _show_panel(request: Request, slug: str, panel: Panel) -> Response:
    if "hx-request" not in request.headers:
        return RedirectResponse(f"{practice_path(request)}/{slug}?panel={panel}#panel", 303)
    return render_page(request, "practice/_panel.html", make_problem_page(request, slug, panel))
