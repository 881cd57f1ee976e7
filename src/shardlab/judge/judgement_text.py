"""A judgement as text and in colour: the verdict, a small case that fails, all cases in a row."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_lines, printable_text
from shardlab._text.units import count_text
from shardlab.judge.counterexample_picture import RIGHT, WRONG, exhibit_lines
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text

_MOST_PRINTED = 8
_LEVELS = {
    "A": "level A: own namespaces, Landlock and seccomp",
    "B": "level B: Landlock and seccomp",
    "C": "level C: limits only, no sandbox",
}


def judgement_text(judgement: Judgement, width: int = DEFAULT_WIDTH) -> str:
    """Return a judgement as plain text.

    >>> right = CaseResult("data=2", 1, "data=2", 7, (Verdict("AC", "Right on 2 devices."),))
    >>> print(judgement_text(Judgement("sum", 1, "A", 7, "submit", (right,))))
    AC  Same result on 1 mesh.
    <BLANKLINE>
    ✓ data=2
    1 of 1 case right; level A: own namespaces, Landlock and seccomp; seed 7
    """
    return lines_text(judgement_lines(judgement, width))


def judgement_rich(judgement: Judgement, width: int = DEFAULT_WIDTH) -> Text:
    """Return a judgement for rich to print in colour."""
    return lines_rich(judgement_lines(judgement, width))


def judgement_lines(judgement: Judgement, width: int = DEFAULT_WIDTH) -> Iterator[Line]:
    """Yield the lines of a judgement, the most telling first."""
    width = max(width, 40)
    first = judgement.first_failure
    if first is None:
        yield from verdict_lines(judgement.verdict, "", width)
    else:
        yield from case_lines(first, _name(first, judgement), width)
        yield from _others(judgement, first, width)
    if judgement.counterexample is not None:
        yield []
        yield from exhibit_lines(judgement.counterexample, width)
    yield []
    yield from _cases(judgement, width)
    for note in judgement.notes:
        yield from (
            [Span(text=line, is_faint=True)]
            for line in wrap(printable_text(f"note: {note}"), width)
        )
    yield from _summary(judgement, width)


def case_lines(case: CaseResult, name: str, width: int) -> Iterator[Line]:
    """Yield what is said of one case, and what the answer printed in it."""
    for number, verdict in enumerate(case.verdicts):
        yield from verdict_lines(verdict, name if number == 0 else "", width)
    printed = printable_lines(case.output).splitlines()
    if printed:
        yield [Span(text="  printed:", is_faint=True)]
        for line in printed[:_MOST_PRINTED]:
            yield [Span(text=f"    {line[: width - 4]}", is_faint=True)]
        if len(printed) > _MOST_PRINTED:
            more = count_text(len(printed) - _MOST_PRINTED, "more line")
            yield [Span(text=f"    ... {more}", is_faint=True)]


def verdict_lines(verdict: Verdict, heading: str, width: int) -> Iterator[Line]:
    """Yield one verdict in its parts."""
    ink = "green" if verdict.code == "AC" else "yellow" if verdict.code == "IE" else "red"
    if heading:
        yield [
            Span(text=f"{verdict.code}  ", is_strong=True, ink=ink),
            Span(text=heading, is_strong=True),
        ]
        yield from ([Span(text=line)] for line in _folded(verdict.what, width, "  "))
    else:
        lines = wrap(
            f"{verdict.code}  {printable_text(verdict.what)}", width, subsequent_indent="  "
        )
        code = len(verdict.code)
        yield [Span(text=lines[0][:code], is_strong=True, ink=ink), Span(text=lines[0][code:])]
        yield from ([Span(text=line)] for line in lines[1:])
    if verdict.where:
        yield from ([Span(text=line)] for line in _folded(verdict.where, width, "  at "))
    for shown in verdict.shows:
        yield from ([Span(text=line, is_faint=True)] for line in _folded(shown, width, "    "))
    if verdict.fix:
        yield from (
            [Span(text=line, ink="green")] for line in _folded(verdict.fix, width, "  try: ")
        )


def _folded(text: str, width: int, start: str) -> list[str]:
    return wrap(
        printable_text(text),
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
    )


def _others(judgement: Judgement, first: CaseResult, width: int) -> Iterator[Line]:
    """Yield one line for each other kind of failure."""
    told = {(verdict.code, verdict.cause) for verdict in first.verdicts}
    for case in judgement.cases:
        for verdict in case.verdicts:
            if verdict.code == "AC" or (verdict.code, verdict.cause) in told:
                continue
            told.add((verdict.code, verdict.cause))
            yield []
            yield from verdict_lines(verdict, _name(case, judgement), width)


def _name(case: CaseResult, judgement: Judgement) -> str:
    return f"part {case.part}, {case.name}" if _has_parts(judgement) else case.name


def _has_parts(judgement: Judgement) -> bool:
    """Say whether the problem has a second part, whose cases come last."""
    names = [f"part {case.part}," for case in judgement.cases] + list(judgement.not_judged)
    return not all(name.startswith("part 1,") for name in names)


def _cases(judgement: Judgement, width: int) -> Iterator[Line]:
    """Yield the cases of each part in a row, with a mark and the code of each."""
    parts: dict[int, list[CaseResult]] = {}
    for case in judgement.cases:
        parts.setdefault(case.part, []).append(case)
    for number, cases in parts.items():
        head = f"part {number}: " if _has_parts(judgement) else ""
        yield from _wrapped(head, [_marked(case) for case in cases], width)


def _marked(case: CaseResult) -> tuple[str, str, str]:
    if case.passed:
        return RIGHT, case.name, "green"
    return WRONG, f"{case.name} {case.verdicts[0].code}", "red"


def _wrapped(head: str, items: list[tuple[str, str, str]], width: int) -> Iterator[Line]:
    line, used = [Span(text=head)], len(head)
    for mark, name, ink in items:
        size = len(mark) + len(name) + 3
        if used + size > width and used > len(head):
            yield line
            line, used = [Span(text=" " * len(head))], len(head)
        line += [Span(text=f"{mark} ", ink=ink, is_strong=True), Span(text=f"{name}  ")]
        used += size
    yield line


def _summary(judgement: Judgement, width: int) -> Iterator[Line]:
    n, right = len(judgement.cases), sum(case.passed for case in judgement.cases)
    told = [f"{right} of {count_text(n, 'case')} right"]
    if judgement.not_judged:
        told.append(f"{count_text(len(judgement.not_judged), 'case')} not judged after that")
    if not judgement.counts:
        told.append("not counted")
    if judgement.level:
        told.append(_LEVELS.get(judgement.level, f"level {judgement.level}"))
    if judgement.kind != "run":
        told.append(f"seed {judgement.seed}")
    ink = "green" if judgement.passed else "red"
    for line in wrap("; ".join(told), width):
        yield [Span(text=line, is_strong=True, ink=ink)]
