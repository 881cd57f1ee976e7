"""Tables for the terminal: the course with its marks, and the history of submissions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import wrap

from shardlab.course.progress import ProblemProgress
from shardlab.course.submission import Submission
from shardlab.render.terminal import Line, Span

# Told apart without colour too.
_MARKS = {"solved": "[x]", "tried": "[~]", "open": "[ ]", "locked": "[-]"}
_INKS = {"solved": "green", "tried": "yellow", "open": "", "locked": ""}


def course_lines(steps: Sequence[ProblemProgress], width: int) -> Iterator[Line]:
    """Yield each track with its problems, and the one that comes next."""
    track = ""
    widest = max((len(step.problem.slug) for step in steps), default=0)
    for step in steps:
        if step.track.folder != track:
            yield from (
                ([], [Span(text=step.track.title, is_strong=True)])
                if track
                else ([Span(text=step.track.title, is_strong=True)],)
            )
            track = step.track.folder
        yield from _step_lines(step, widest, width)
    yield []
    n_solved = sum(step.mark == "solved" for step in steps)
    yield [Span(text=f"{n_solved} of {len(steps)} solved.")]
    yield [Span(text="[x] solved  [~] tried  [-] easier after others, and open all the same")]
    coming = next((step for step in steps if step.is_next), None)
    if coming:
        yield [Span(text="Next: "), Span(text=coming.problem.slug, is_strong=True)]


def history_lines(
    submissions: Sequence[Submission], slugs: Sequence[str], width: int
) -> Iterator[Line]:
    """Yield a line for each submission, the oldest first; one that was not judged says so."""
    widest = max((len(each.problem) for each in submissions), default=0)
    for each in submissions:
        ink = "green" if each.passed else "red" if each.is_finished and each.counts else "yellow"
        when = f"{each.when[:10]} {each.when[11:19]}"
        verdict = each.code if each.is_finished else "not judged"
        said = f"{each.number:>5}  {when}  {each.problem:<{widest}}  {each.kind:<6}  "
        seed = f"  seed {each.seed}" if each.kind == "submit" else ""
        yield [Span(text=said), Span(text=f"{verdict:<5}", ink=ink), Span(text=seed)]
    left = [each for each in submissions if not each.is_finished and each.problem in slugs]
    if left:
        told = (
            f"{len(left)} not judged: interrupted, or still under way. "
            f"`shardlab practice submit --again {left[-1].number}` judges one as it was handed in."
        )
        yield []
        yield from ([Span(text=line, is_faint=True)] for line in wrap(told, max(width, 20)))


def _step_lines(step: ProblemProgress, widest: int, width: int) -> Iterator[Line]:
    is_faint = step.mark == "locked"
    head = f"{step.number:>3} "
    name = f" {step.problem.slug:<{widest}}  "
    line: Line = [
        Span(text=">" if step.is_next else " ", is_strong=True),
        Span(text=head, is_faint=True),
        Span(text=_MARKS[step.mark], ink=_INKS[step.mark]),
        Span(text=name, is_faint=is_faint),
    ]
    about = f"{step.problem.difficulty:<6}  {step.problem.title}"
    if step.is_changed:
        about += " (changed since)"
    if step.mark == "locked":
        about += f"  (after {', '.join(step.missing)})"
    room = width - sum(len(span.text) for span in line)
    if len(about) <= room:
        yield [*line, Span(text=about, is_faint=True)]
        return
    yield line
    indent = " " * 9
    for text in wrap(about, max(width, 30), initial_indent=indent, subsequent_indent=indent):
        yield [Span(text=text, is_faint=True)]
