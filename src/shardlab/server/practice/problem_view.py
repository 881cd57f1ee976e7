"""The parts of a problem page: the editor, the latest result, hints, solution and history."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import Match, SequenceMatcher
from pathlib import Path
from typing import Literal

from markupsafe import Markup

from shardlab.catalogue.problem import Problem
from shardlab.course.progress import next_problem
from shardlab.course.store import PracticeSnapshot, Progress, Submission
from shardlab.course.workbook import Workbook, has_solution_access, used_hints
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
    highlight_catalogue_python,
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
# A diff takes time in proportion to lines² and, with pairs of equal lines, to pairs^1.5: at these
# limits a second at the worst. 1000 lines with 200 empty ones have 40,000 pairs.
_MAX_COMPARED_LINES = 8000  # of both texts together
_MAX_EQUAL_PAIRS = 60_000


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

    @property
    def revision(self) -> str:
        """Return what changes with the text: a tab that has another one must not replace it."""
        return text_revision(self.source)


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


def text_revision(source: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def backup_name(slug: str) -> str:
    """Return where the text is stored that a reset replaces; no slug has a dot."""
    return f"{slug}.backup"


def problem_snapshot(workbook: Workbook, slug: str) -> PracticeSnapshot:
    """Return all that the page of a problem shows of a person's work, read at once."""
    return workbook.store.load_snapshot(slug, (slug, backup_name(slug)))


def view_editor(
    workbook: Workbook, problem: Problem, snapshot: PracticeSnapshot, *, reads_files: bool
) -> EditorView:
    """Return what the person worked on last: draft, submission, solution file, or the starter.

    `reads_files` is for local mode, where the solution file of the terminal is the person's own.
    """
    store, slug = workbook.store, problem.slug
    starter = problem.read_text("starter.py")
    has_backup = backup_name(slug) in snapshot.drafts
    draft = snapshot.drafts.get(slug)
    latest = snapshot.submissions[-1] if snapshot.submissions else None
    if draft is not None and (latest is None or draft.saved_when >= latest.when):
        source, origin = draft.source, f"Draft saved {_time_text(draft.saved_when)}"
    elif latest is not None:
        source = store.load_source(latest.number).decode("utf-8", "replace")
        origin = f"As in submission {latest.number}"
    else:
        source, origin = starter, "The starter"
        path = snapshot.progress_of(slug).path
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


def view_statement(problem: Problem, practice_path: str) -> StatementHtml:
    """Return the lesson; its pictures have addresses of their own."""
    return render_statement(problem.page, f"{practice_path}/{problem.slug}/pictures/{{n}}.svg")


def read_guesses(statement: StatementHtml, fields: Mapping[str, str]) -> dict[int, Guess]:
    """Return the predictions in a query string: predict-1=f32[3]."""
    guesses = {}
    for block in statement.predictions:
        text = fields.get(f"predict-{block.number}", "").strip()[:200]
        if text:
            guesses[block.number] = Guess(text=text, is_right=block.prediction.is_right(text))
    return guesses


def view_hints(problem: Problem, progress: Progress) -> tuple[HintView, ...]:
    """Return the hints that were shown, in order."""
    hints = used_hints(problem, progress)
    return tuple(HintView(number=hint.number, html=render_markdown(hint.text)) for hint in hints)


def view_solution(problem: Problem, progress: Progress) -> SolutionView:
    """Return the solution if it was earned or requested twice, as the terminal does."""
    is_open = has_solution_access(progress)
    source = problem.read_text("solution.py") if is_open else ""
    return SolutionView(
        html=highlight_catalogue_python(source) if is_open else None,
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
    following = None
    if submission.passed and submission.kind == "submit" and problem is not None:
        progress = workbook.store.load_progress()
        following = find_next_problem(workbook, progress, submission.problem)
    return ResultView(
        slug=submission.problem,
        submission=view_submission(submission),
        status=status,
        judgement=judgement,
        next_problem=following,
    )


def find_next_problem(
    workbook: Workbook, progress: Mapping[str, Progress], slug: str
) -> tuple[str, str] | None:
    """Return slug and title of the problem after this one that is open and not solved."""
    next_slug = next_problem(workbook.catalogue, progress, slug)
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
    lines: list[DiffLine] = []
    matcher = _LimitedMatcher(old_lines, new_lines)
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


class _LimitedMatcher(SequenceMatcher[str]):
    """Compares as difflib does; longer texts differ in one block."""

    def __init__(self, old: Sequence[str], new: Sequence[str]) -> None:
        super().__init__(None, old, new, autojunk=False)
        self._old, self._new = old, new

    def get_matching_blocks(self) -> list[Match]:
        old, new = self._old, self._new
        counts = Counter(new)
        n_pairs = sum(count * counts[line] for line, count in Counter(old).items())
        if len(old) + len(new) <= _MAX_COMPARED_LINES and n_pairs <= _MAX_EQUAL_PAIRS:
            return super().get_matching_blocks()
        n_first = _n_equal(old, new)
        n_last = min(_n_equal(old[::-1], new[::-1]), min(len(old), len(new)) - n_first)
        return [
            Match(0, 0, n_first),
            Match(len(old) - n_last, len(new) - n_last, n_last),
            Match(len(old), len(new), 0),
        ]


def _n_equal(old: Sequence[str], new: Sequence[str]) -> int:
    """Return how many lines are equal before the first that are not."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))


def _same_lines(texts: Sequence[str], old_start: int, new_start: int) -> list[DiffLine]:
    return [
        DiffLine(kind="same", old_number=old_start + n, new_number=new_start + n, text=text)
        for n, text in enumerate(texts, 1)
    ]
