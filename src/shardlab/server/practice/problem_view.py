"""The parts of a problem page: the editor, the latest result, hints, solution and history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

from markupsafe import Markup

from shardlab.catalogue.problem import Problem
from shardlab.course.store import Progress, Submission
from shardlab.course.workbook import Workbook
from shardlab.errors import SolutionFileMissing, UnknownProblem
from shardlab.judge.submission_source import MAX_BYTES
from shardlab.judge.verdict import VERDICTS
from shardlab.server.practice.judgement_view import (
    JudgementView,
    tone_of_code,
    view_judgement,
)
from shardlab.server.practice.judging import JudgingStatus
from shardlab.server.practice.statement_html import (
    StatementHtml,
    highlight_python,
    render_markdown,
    render_statement,
)

Panel = Literal["lesson", "hints", "solution", "submissions"]
PANELS: tuple[tuple[Panel, str], ...] = (
    ("lesson", "Lesson"),
    ("hints", "Hints"),
    ("solution", "Solution"),
    ("submissions", "Submissions"),
)
_CONTEXT_LINES = 3  # around each change of a diff


@dataclass(frozen=True, kw_only=True)
class EditorView:
    """What the editor shows, and where it comes from."""

    source: str
    starter: str
    origin: str  # in words
    has_backup: bool  # of what a reset replaced
    max_bytes: int = MAX_BYTES

    @property
    def is_starter(self) -> bool:
        return self.source == self.starter


@dataclass(frozen=True, kw_only=True)
class SubmissionRow:
    """One submission in the history."""

    number: int
    kind: str
    when: str  # ISO, UTC
    code: str
    label: str
    tone: str
    is_finished: bool
    passed: bool

    @property
    def kind_label(self) -> str:
        return "Run" if self.kind == "run" else "Submission"

    @property
    def when_text(self) -> str:
        return f"{self.when[:10]} {self.when[11:16]} UTC"


@dataclass(frozen=True, kw_only=True)
class ResultView:
    """What came of one submission, or how far it is."""

    slug: str
    submission: SubmissionRow
    status: JudgingStatus
    judgement: JudgementView | None
    next_problem: tuple[str, str] | None = None  # slug and title, after a pass


@dataclass(frozen=True, kw_only=True)
class HintView:
    """One hint that was shown."""

    number: int
    html: Markup


@dataclass(frozen=True, kw_only=True)
class SolutionView:
    """The solution, or how often it must be requested."""

    html: Markup | None
    source: str
    is_requested: bool  # once; the next request shows it
    n_unused_hints: int


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What the reader has predicted."""

    text: str
    is_right: bool


@dataclass(frozen=True, kw_only=True)
class DiffLine:
    """One line of a diff; a gap has no number on either side."""

    kind: Literal["same", "added", "removed", "gap"]
    old_number: int | None
    new_number: int | None
    text: str


# ------------------------------------------------------------------------------------------ editor


def backup_name(slug: str) -> str:
    """Return where the text is stored that a reset replaces; no slug has a dot."""
    return f"{slug}.backup"


def view_editor(workbook: Workbook, problem: Problem, *, reads_files: bool) -> EditorView:
    """Return what the person worked on last: draft, submission, solution file, or the starter.

    `reads_files` is for local mode, where the solution file of the terminal is the person's own.
    """
    store, slug = workbook.store, problem.slug
    starter = problem.read_text("starter.py")
    has_backup = store.load_draft(backup_name(slug)) is not None
    draft = store.load_draft(slug)
    submissions = store.list_submissions(slug)
    latest = submissions[-1] if submissions else None
    if draft is not None and (latest is None or draft.saved_when >= latest.when):
        source, origin = draft.source, f"Draft saved {_time_text(draft.saved_when)}"
    elif latest is not None:
        source = store.load_source(latest.number).decode("utf-8", "replace")
        origin = f"As in submission {latest.number}"
    else:
        source, origin = starter, "The starter"
        path = store.progress_of(slug).path
        if reads_files and path:
            file_source = _read_solution_text(Path(path), slug)
            if file_source is not None and file_source != starter:
                source, origin = file_source, f"Your file {Path(path).name}"
    return EditorView(source=source, starter=starter, origin=origin, has_backup=has_backup)


def _read_solution_text(path: Path, slug: str) -> str | None:
    from shardlab.course.solution_file import read_solution_file

    try:
        body = read_solution_file(path, slug)
        return body.decode("utf-8") if len(body) <= MAX_BYTES else None
    except (SolutionFileMissing, UnicodeDecodeError):
        return None


def _time_text(when: str) -> str:
    return f"{when[:10]} {when[11:16]} UTC"


# ------------------------------------------------------------------------------- lesson and panels


def view_statement(problem: Problem) -> StatementHtml:
    """Return the lesson; its pictures have addresses of their own."""
    return render_statement(problem.page, f"/practice/{problem.slug}/layouts/{{n}}.svg")


def read_guesses(statement: StatementHtml, fields: Mapping[str, str]) -> dict[int, Guess]:
    """Return the predictions in a query string: predict-1=f32[3]."""
    guesses = {}
    for block in statement.predictions:
        text = fields.get(f"predict-{block.number}", "").strip()[:200]
        if text:
            guesses[block.number] = Guess(text=text, is_right=block.prediction.is_right(text))
    return guesses


def view_hints(workbook: Workbook, problem: Problem) -> tuple[HintView, ...]:
    """Return the hints that were shown, in order."""
    hints = workbook.used_hints(problem)
    return tuple(HintView(number=hint.number, html=render_markdown(hint.text)) for hint in hints)


def view_solution(workbook: Workbook, problem: Problem, progress: Progress) -> SolutionView:
    """Return the solution if it was earned or requested twice, as the terminal does."""
    is_open = workbook.has_solution_access(problem)
    source = problem.read_text("solution.py") if is_open else ""
    return SolutionView(
        html=highlight_python(source) if is_open else None,
        source=source,
        is_requested=progress.solution_requests > 0,
        n_unused_hints=max(len(problem.hints) - progress.hints, 0),
    )


# ----------------------------------------------------------------------------------------- results


def view_submission(submission: Submission) -> SubmissionRow:
    """Return a submission for the history."""
    return SubmissionRow(
        number=submission.number,
        kind=submission.kind,
        when=submission.when,
        code=submission.code,
        label=VERDICTS.get(submission.code, "not judged"),
        tone=tone_of_code(submission.code),
        is_finished=submission.is_finished,
        passed=submission.passed,
    )


def view_result(workbook: Workbook, submission: Submission, status: JudgingStatus) -> ResultView:
    """Return what came of a submission, and after a pass the next problem."""
    judgement = None
    problem = _find_problem(workbook, submission.problem)
    # One that is judged again after a failure of the judge shows how far it is instead.
    if submission.is_finished and not status.is_active:
        stored = workbook.store.load_judgement(submission.number)
        judgement = view_judgement(stored, problem) if stored is not None else None
    next_problem = None
    if submission.passed and submission.kind == "submit" and problem is not None:
        next_problem = find_next_problem(workbook, submission.problem)
    return ResultView(
        slug=submission.problem,
        submission=view_submission(submission),
        status=status,
        judgement=judgement,
        next_problem=next_problem,
    )


def find_next_problem(workbook: Workbook, slug: str) -> tuple[str, str] | None:
    """Return slug and title of the problem after this one that is open and not solved."""
    next_slug = workbook.next_slug(after=slug)
    if next_slug is None or next_slug == slug:
        return None
    return next_slug, workbook.catalogue.load_problem(next_slug).title


def _find_problem(workbook: Workbook, slug: str) -> Problem | None:
    try:
        return workbook.catalogue.load_problem(slug)
    except UnknownProblem:
        return None


def diff_lines(old: str, new: str) -> tuple[DiffLine, ...]:
    """Return the changes from one source to another, each with a few lines around it.

    >>> [(line.kind, line.text) for line in diff_lines("a\\nb\\n", "a\\nc\\n")]
    [('same', 'a'), ('removed', 'b'), ('added', 'c')]
    """
    old_lines, new_lines = old.splitlines(), new.splitlines()
    matcher = SequenceMatcher(None, old_lines, new_lines, autojunk=False)
    lines: list[DiffLine] = []
    for group in matcher.get_grouped_opcodes(_CONTEXT_LINES):
        if group[0][1] or group[0][3] or lines:
            lines.append(DiffLine(kind="gap", old_number=None, new_number=None, text=""))
        for tag, old_start, old_stop, new_start, new_stop in group:
            if tag == "equal":
                lines += _same_lines(old_lines[old_start:old_stop], old_start, new_start)
                continue
            lines += [
                DiffLine(kind="removed", old_number=n + 1, new_number=None, text=old_lines[n])
                for n in range(old_start, old_stop)
            ]
            lines += [
                DiffLine(kind="added", old_number=None, new_number=n + 1, text=new_lines[n])
                for n in range(new_start, new_stop)
            ]
    return tuple(lines)


def _same_lines(texts: Sequence[str], old_start: int, new_start: int) -> list[DiffLine]:
    return [
        DiffLine(kind="same", old_number=old_start + n, new_number=new_start + n, text=text)
        for n, text in enumerate(texts, 1)
    ]
