"""Tables for the terminal: the problems of the course with their status, and past submissions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from shardlab.course.progress import ProblemProgress
from shardlab.course.store import Submission
from shardlab.judge.verdict import VERDICTS
from shardlab.render.terminal import Line, Span

# Different characters, so that the status is clear without color too.
_MARKS = {"solved": "[x]", "tried": "[~]", "open": "[ ]", "locked": "[-]"}
_COLORS = {"solved": "green", "tried": "yellow", "open": "", "locked": ""}
_LEGEND = "[x] solved  [~] tried  [-] builds on problems not solved yet; open anyway"


def course_lines(rows: Sequence[ProblemProgress], width: int) -> Iterator[Line]:
    """Yield each track with its problems, and the next problem."""
    track = ""
    slug_width = max((len(row.problem.slug) for row in rows), default=0)
    for row in rows:
        if row.track.folder != track:
            if track:
                yield []
            yield [Span(text=row.track.title, is_strong=True)]
            track = row.track.folder
        yield from _problem_lines(row, slug_width, width)
    yield []
    n_solved = sum(row.status == "solved" for row in rows)
    yield [Span(text=f"{n_solved} of {len(rows)} solved.")]
    yield from ([Span(text=text)] for text in wrap(_LEGEND, max(width, 30)))
    next_row = next((row for row in rows if row.is_next), None)
    if next_row:
        yield [Span(text="Next: "), Span(text=next_row.problem.slug, is_strong=True)]


def _prerequisite_notes(row: ProblemProgress) -> Iterator[str]:
    """Yield which problems come first, from the full list to nothing: the mark already says it."""
    for n_names in range(len(row.missing), 0, -1):
        n_left = len(row.missing) - n_names
        rest = f" and {n_left} more" if n_left else ""
        yield f"  (after {', '.join(row.missing[:n_names])}{rest})"
    yield ""


def _problem_lines(row: ProblemProgress, slug_width: int, width: int) -> Iterator[Line]:
    is_locked = row.status == "locked"
    line: Line = [
        Span(text=">" if row.is_next else " ", is_strong=True),
        Span(text=f"{row.number:>3} ", is_faint=True),
        Span(text=_MARKS[row.status], ink=_COLORS[row.status]),
        Span(text=f" {row.problem.slug:<{slug_width}}  ", is_faint=is_locked),
    ]
    description = f"{row.problem.difficulty:<6}  {row.problem.title}"
    if row.is_changed:
        description += " (changed since)"
    free_width = width - sum(len(span.text) for span in line)
    for note in _prerequisite_notes(row) if is_locked else ("",):
        if len(description + note) <= free_width:
            yield [*line, Span(text=description + note, is_faint=True)]
            return
    yield line
    indent = " " * 9
    for text in wrap(description, max(width, 30), initial_indent=indent, subsequent_indent=indent):
        yield [Span(text=text, is_faint=True)]


def history_lines(
    submissions: Sequence[Submission], slugs: Sequence[str], width: int
) -> Iterator[Line]:
    """Yield a line for each submission, oldest first, and how to judge one that is not judged."""
    slug_width = max((len(submission.problem) for submission in submissions), default=0)
    for submission in submissions:
        time = f"{submission.when[:10]} {submission.when[11:19]}"
        slug = f"{submission.problem:<{slug_width}}"
        verdict = submission.code if submission.is_finished else "not judged"
        seed = f"  seed {submission.seed}" if submission.kind == "submit" else ""
        meaning = VERDICTS.get(submission.code, "")
        yield [
            Span(text=f"{submission.number:>5}  {time}  {slug}  {submission.kind:<6}  "),
            Span(text=f"{verdict:<8}", ink=_verdict_color(submission)),
            Span(text=seed),
            Span(text=f"  {meaning}" if meaning else "", is_faint=True),
        ]
    # A problem that left the catalogue cannot be judged any more.
    unfinished = [s for s in submissions if not s.is_finished and s.problem in slugs]
    if unfinished:
        note = (
            f"{len(unfinished)} not judged: interrupted, or still running. "
            f"`shardlab practice submit --again {unfinished[-1].number}` judges one as submitted."
        )
        yield []
        yield from ([Span(text=line, is_faint=True)] for line in wrap(note, max(width, 20)))


def _verdict_color(submission: Submission) -> str:
    if submission.passed:
        return "green"
    return "red" if submission.is_finished and submission.counts else "yellow"
