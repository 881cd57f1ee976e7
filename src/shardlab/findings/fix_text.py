"""A search for a fix as text: the diff, what proves it, and which edits failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from textwrap import wrap

from shardlab._text.printable import printable_text
from shardlab._text.units import count_text
from shardlab.findings.fix_search import Fix, FixSearch, RejectedEdit
from shardlab.render.terminal import Line, Span

_MAX_REASONS = 4


def fix_lines(search: FixSearch, width: int, *, verbose: bool = False) -> Iterator[Line]:
    """Yield the lines of a search; `verbose` lists every edit that was tried."""
    width = max(width, 40)
    for fix in search.fixes:
        yield []
        for line in wrap(f"fix: {fix.what}", width, subsequent_indent="  "):
            yield [Span(text=line, is_strong=True, ink="green")]
        for line in wrap(f"  proven: {_proof_text(fix)}", width, subsequent_indent="    "):
            yield [Span(text=line)]
        if fix.remaining:
            text = f"  remaining after the edit, not fixed by it: {', '.join(fix.remaining)}"
            for line in wrap(text, width, subsequent_indent="    "):
                yield [Span(text=line, is_strong=True, ink="yellow")]
        yield from (_diff_line(line) for line in fix.diff.splitlines())
    if not search.fixes:
        yield []
        yield [Span(text="fix: none could be proven, so none is offered.", is_strong=True)]
    if search.note:
        yield from ([Span(text=line)] for line in wrap(f"note: {search.note}", width))
    if search.rejected:
        yield from _rejected_lines(search.rejected, width, verbose)


def _proof_text(fix: Fix) -> str:
    """Return on what a fix was shown to be right."""
    what = "values and gradients" if fix.has_gradients else "values"
    meshes = ", ".join(fix.meshes)
    return f"{what} are right on {meshes}, with {count_text(fix.n_inputs, 'input')} on each."


def _diff_line(line: str) -> Line:
    ink = {"+": "green", "-": "red"}.get(line[:1], "")
    return [Span(text=printable_text(line), ink=ink)] if ink else [Span(text=printable_text(line))]


def _rejected_lines(
    rejected: tuple[RejectedEdit, ...], width: int, verbose: bool
) -> Iterator[Line]:
    yield [Span(text=f"tried and not offered: {count_text(len(rejected), 'edit')}", is_faint=True)]
    if verbose:
        for item in rejected:
            text = printable_text(f"{item.what}: {item.reason}")
            for line in wrap(f"  {text}", width, subsequent_indent="    "):
                yield [Span(text=line, is_faint=True)]
        return
    reasons = Counter((item.family, _short_reason(item.reason)) for item in rejected)
    for (family, reason), n in reasons.most_common(_MAX_REASONS):
        text = printable_text(f"{family}{f' ×{n}' if n > 1 else ''}: {reason}")
        for line in wrap(f"  {text}", width, subsequent_indent="    "):
            yield [Span(text=line, is_faint=True)]
    n_others = sum(n for _, n in reasons.most_common()[_MAX_REASONS:])
    if n_others:
        yield [Span(text=f"  and {n_others} more; --verbose lists all", is_faint=True)]


def _short_reason(reason: str) -> str:
    return reason if len(reason) <= 90 else f"{reason[:87]}..."
