"""A judgement as text, plain or in color: the verdict, the minimal failing case, all cases."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_lines, printable_text
from shardlab._text.units import count_text
from shardlab.judge.counterexample_picture import RIGHT, WRONG, counterexample_lines
from shardlab.judge.debug_output import debug_output_text, debug_output_title
from shardlab.judge.judgement import CaseResult, Judgement
from shardlab.judge.verdict import Verdict
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text

_MAX_PRINTED = 24
_MIN_WIDTH = 40
_LEVELS = {
    "A": "level A: namespaces, Landlock and seccomp",
    "B": "level B: Landlock and seccomp",
    "C": "level C: limits only, no sandbox",
}


def judgement_text(judgement: Judgement, width: int = DEFAULT_WIDTH) -> str:
    """Return a judgement as plain text.

    >>> case = CaseResult(
    ...     name="data=2", part=1, mesh="data=2", seed=7,
    ...     verdicts=(Verdict(code="AC", what="Right on 2 devices."),),
    ... )
    >>> print(judgement_text(Judgement(
    ...     problem="sum", content_version=1, level="A", seed=7, kind="submit", cases=(case,)
    ... )))
    AC: accepted
      Same result on 1 mesh.
    <BLANKLINE>
    ✓ data=2
    1 of 1 case passed
    level A; seed 7
    """
    return lines_text(judgement_lines(judgement, width))


def judgement_rich(judgement: Judgement, width: int = DEFAULT_WIDTH) -> Text:
    """Return a judgement for rich to print in color."""
    return lines_rich(judgement_lines(judgement, width))


def judgement_lines(
    judgement: Judgement, width: int = DEFAULT_WIDTH, *, verbose: bool = False
) -> Iterator[Line]:
    """Yield the lines of a judgement, the most important first.

    With `verbose`, the conditions of the judgement are written out.
    """
    width = max(width, _MIN_WIDTH)
    first = judgement.first_failure
    if first is None:
        yield from verdict_lines(judgement.verdict, "", width)
        yield from _accepted_output(judgement, width)
    else:
        yield from case_lines(first, _case_name(first, judgement), width)
        yield from _other_failures(judgement, first, width)
    if judgement.counterexample is not None:
        yield []
        yield from counterexample_lines(judgement.counterexample, width)
        yield from _output_lines(judgement.counterexample, "minimal failing case", width)
    yield []
    yield from _case_overview(judgement, width)
    for note in judgement.notes:
        yield from (
            [Span(text=line, is_faint=True)]
            for line in wrap(printable_text(f"note: {note}"), width)
        )
    yield from _summary_lines(judgement, width, verbose)


def case_lines(case: CaseResult, name: str, width: int) -> Iterator[Line]:
    """Yield the verdicts on one case, and what the submission printed in it."""
    for number, verdict in enumerate(case.verdicts):
        yield from verdict_lines(verdict, name if number == 0 else "", width)
    yield from _output_lines(case, "", width)


def _accepted_output(judgement: Judgement, width: int) -> Iterator[Line]:
    """Yield what an accepted submission printed, in the first case on several devices."""
    printing = [case for case in judgement.cases if case.debug_output or case.output.strip()]
    several = [case for case in printing if case.mesh and not case.mesh.endswith("=1")]
    by_device = [case for case in several if case.debug_output]
    for case in (by_device or several or printing)[:1]:
        yield from _output_lines(case, _case_name(case, judgement), width)


def _output_lines(case: CaseResult, case_name: str, width: int) -> Iterator[Line]:
    """Yield what Python printed, and what the devices printed."""
    # A part of plain values is called, and not traced.
    head = "printed while tracing" if case.mesh else "printed"
    head += f" ({case_name})" if case_name else ""
    yield from _printed_lines(printable_lines(case.output), head, width)
    if case.debug_output is not None:
        head = debug_output_title(case.debug_output, case_name, case.mesh)
        yield from _printed_lines(debug_output_text(case.debug_output), head, width)


def _printed_lines(text: str, head: str, width: int) -> Iterator[Line]:
    printed = text.splitlines()
    if not printed:
        return
    yield from (
        [Span(text=line, is_faint=True)]
        for line in wrap(f"  {head}:", width, subsequent_indent="  ")
    )
    for line in printed[:_MAX_PRINTED]:
        yield [Span(text=f"    {line[: width - 4]}", is_faint=True)]
    if len(printed) > _MAX_PRINTED:
        rest = count_text(len(printed) - _MAX_PRINTED, "more line")
        yield [Span(text=f"    ... {rest}", is_faint=True)]


def verdict_lines(verdict: Verdict, case_name: str, width: int) -> Iterator[Line]:
    """Yield one verdict: code and label, then message, line, details and fix."""
    ink = "green" if verdict.code == "AC" else "yellow" if verdict.code == "IE" else "red"
    title = f"{verdict.title} ({case_name})" if case_name else verdict.title
    first, *rest = wrap(title, width, subsequent_indent="  ", break_on_hyphens=False)
    n_code = len(verdict.code)
    yield [
        Span(text=first[:n_code], is_strong=True, ink=ink),
        Span(text=first[n_code:], is_strong=True),
    ]
    yield from ([Span(text=line, is_strong=True)] for line in rest)
    yield from ([Span(text=line)] for line in _wrap_text(verdict.what, width, "  "))
    if verdict.where:
        yield from ([Span(text=line)] for line in _wrap_text(verdict.where, width, "  at "))
    for detail in verdict.shows:
        yield from ([Span(text=line, is_faint=True)] for line in _wrap_text(detail, width, "    "))
    if verdict.fix:
        yield from (
            [Span(text=line, ink="green")] for line in _wrap_text(verdict.fix, width, "  try: ")
        )


def _wrap_text(text: str, width: int, start: str) -> list[str]:
    return wrap(
        printable_text(text),
        width,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_on_hyphens=False,
    )


def _other_failures(judgement: Judgement, first: CaseResult, width: int) -> Iterator[Line]:
    """Yield each other kind of failure once for each part."""
    shown_kinds = {(first.part, verdict.code, verdict.cause) for verdict in first.verdicts}
    for case in judgement.cases:
        for verdict in case.verdicts:
            kind = (case.part, verdict.code, verdict.cause)
            if verdict.code == "AC" or kind in shown_kinds:
                continue
            shown_kinds.add(kind)
            yield []
            yield from verdict_lines(verdict, _case_name(case, judgement), width)


def _case_name(case: CaseResult, judgement: Judgement) -> str:
    return f"part {case.part}, {case.name}" if _has_parts(judgement) else case.name


def _has_parts(judgement: Judgement) -> bool:
    """Return whether the problem has a second part; its cases come last."""
    # Not from the problem: a stored judgement is shown without its catalogue, too.
    names = [f"part {case.part}," for case in judgement.cases] + list(judgement.not_judged)
    return not all(name.startswith("part 1,") for name in names)


def _case_overview(judgement: Judgement, width: int) -> Iterator[Line]:
    """Yield the cases of each part in a row, each with a mark and its code."""
    parts: dict[int, list[CaseResult]] = {}
    for case in judgement.cases:
        parts.setdefault(case.part, []).append(case)
    for number, cases in parts.items():
        head = f"part {number}: " if _has_parts(judgement) else ""
        yield from _wrap_items(head, [_case_item(case) for case in cases], width)


def _case_item(case: CaseResult) -> tuple[str, str, str]:
    if case.passed:
        return RIGHT, case.name, "green"
    return WRONG, f"{case.name} {case.verdicts[0].code}", "red"


def _wrap_items(head: str, items: list[tuple[str, str, str]], width: int) -> Iterator[Line]:
    line, used = [Span(text=head)], len(head)
    for mark, name, ink in items:
        size = len(mark) + len(name) + 3
        if used + size > width and used > len(head):
            yield line
            line, used = [Span(text=" " * len(head))], len(head)
        line += [Span(text=f"{mark} ", ink=ink, is_strong=True), Span(text=f"{name}  ")]
        used += size
    yield line


def _summary_lines(judgement: Judgement, width: int, verbose: bool) -> Iterator[Line]:
    n, n_passed = len(judgement.cases), sum(case.passed for case in judgement.cases)
    parts = [f"{n_passed} of {count_text(n, 'case')} passed"]
    if judgement.not_judged:
        parts.append(f"{count_text(len(judgement.not_judged), 'case')} not judged after that")
    if not judgement.counts:
        parts.append("not counted")
    ink = "green" if judgement.passed else "red"
    for line in wrap("; ".join(parts), width):
        yield [Span(text=line, is_strong=True, ink=ink)]
    for line in wrap("; ".join(_conditions(judgement, verbose)), width):
        yield [Span(text=line, is_faint=True)]


def _conditions(judgement: Judgement, verbose: bool) -> Iterator[str]:
    """Yield under which conditions it was judged: what another judgement needs to be the same."""
    if judgement.level:
        level = f"level {judgement.level}"
        confinement = judgement.confinement and f"{level}: {judgement.confinement}"
        yield confinement or _LEVELS.get(judgement.level, level) if verbose else level
    if verbose and judgement.rejected_calls:
        names = ", ".join(judgement.rejected_calls)
        n_calls = count_text(sum(judgement.rejected_calls.values()), "system call")
        yield f"{n_calls} rejected ({printable_text(names)})"
    if judgement.kind != "run":
        yield f"seed {judgement.seed}"
    if verbose:
        yield f"{judgement.problem}, content version {judgement.content_version}"
