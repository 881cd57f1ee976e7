"""A trace as text, in colour and as HTML: what is sent, where most of it goes, what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from shardlab._text.units import amount_text, bytes_text, count_text, seconds_text, share_text
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.hardware.estimate import Estimate
from shardlab.hardware.estimate_text import estimate_sections
from shardlab.render.sheet import Column, Row, Section, Sheet, Table, sheet_html, sheet_lines
from shardlab.render.terminal import DEFAULT_WIDTH, lines_rich, lines_text
from shardlab.tracing.call_groups import (
    PHASES,
    Entry,
    entries,
    operand_text,
    scope_text,
    short_path,
)
from shardlab.tracing.collective_style import op_text
from shardlab.tracing.trace import Trace, worst

if TYPE_CHECKING:
    from rich.text import Text

MOST_ROWS = 40
_BAR = 20
_INKS = {"error": "red", "warning": "yellow", "info": "blue"}


def trace_text(trace: Trace, width: int = DEFAULT_WIDTH, estimate: Estimate | None = None) -> str:
    """Return a trace as plain text that no line of which is wider than asked."""
    return lines_text(sheet_lines(trace_sheet(trace, estimate), width))


def trace_rich(trace: Trace, width: int = DEFAULT_WIDTH, estimate: Estimate | None = None) -> Text:
    """Return a trace for rich to print in colour."""
    return lines_rich(sheet_lines(trace_sheet(trace, estimate), width))


def trace_html(trace: Trace, estimate: Estimate | None = None) -> str:
    """Return a trace as an HTML fragment, with its pictures where anything is sent."""
    from shardlab.tracing.timeline import timeline_svg
    from shardlab.tracing.traffic_bars import traffic_svg

    pictures = []
    if trace.wire_bytes:
        pictures = [timeline_svg(trace, estimate), traffic_svg(trace)]
    return sheet_html(trace_sheet(trace, estimate), pictures=pictures)


def trace_sheet(trace: Trace, estimate: Estimate | None = None) -> Sheet:
    """Return what is to be said of a trace, gravest and largest first."""
    sections = [*_finding_sections(trace.findings)]
    if estimate is not None:
        sections.append(estimate_sections(estimate)[0])
    sections += _calls_section(trace, estimate)
    if trace.wire_bytes:
        sections += _total_sections(trace)
    sections += _memory_section(trace)
    if estimate is not None:
        sections += estimate_sections(estimate)[1:]
    if trace.notes:
        sections.append(Section("Notes", None, trace.notes))
    return Sheet(_title(trace), _facts(trace), tuple(sections))


def _title(trace: Trace) -> str:
    mesh = ",".join(f"{name}={size}" for name, size in trace.mesh)
    n_devices = prod(size for _, size in trace.mesh)
    return f"{trace.program} on mesh {mesh or '()'}, {count_text(n_devices, 'device')}"


def _facts(trace: Trace) -> tuple[str, ...]:
    if not trace.collectives:
        sent = "no collective calls: nothing is sent"
    else:
        calls = worst(trace.collectives)
        n_calls = sum(1 if call.count is None else call.count for call in calls)
        lines = {call.source for call in calls}
        sent = (
            f"each device sends {bytes_text(trace.wire_bytes)} in "
            f"{count_text(n_calls, 'collective call')} from {count_text(len(lines), 'line')}"
        )
        if all(call.origin == "compiler" for call in calls):
            sent += ", all inserted by the compiler"
    if trace.flops is None:
        return (sent,)
    return (sent, f"each device computes {amount_text(trace.flops, 'FLOP')}")


def _calls_section(trace: Trace, estimate: Estimate | None) -> list[Section]:
    """All calls by phase, in program order; where there are many, the smallest are left out."""
    folded = entries(trace, estimate)
    shown = sorted(folded, key=lambda entry: -entry.n_bytes)[:MOST_ROWS]
    places = {id(entry) for entry in shown}
    rows = []
    for phase in PHASES:
        mine = [entry for entry in folded if entry.call.phase == phase]
        if mine:
            n_bytes = sum(entry.n_bytes for entry in mine if entry.counted)
            share = share_text(n_bytes, trace.wire_bytes)
            rows.append(Row(cells=(), heading=f"{phase}: {bytes_text(n_bytes)}, {share}"))
            rows += [_row(entry, trace) for entry in mine if id(entry) in places]
    left = _left_out([entry for entry in folded if id(entry) not in places], trace)
    return [Section("Calls", Table(_columns(estimate), tuple(rows)), left)] if rows else []


def _columns(estimate: Estimate | None) -> tuple[Column, ...]:
    return (
        Column(head="operation"),
        Column(head="over"),
        Column(head="operand", drop=1),
        Column(head="payload", is_number=True, drop=4),
        Column(head="sends", is_number=True, drop=3),
        Column(head="×", is_number=True),
        Column(head="in all", is_number=True),
        Column(head="share", is_number=True, drop=2),
        *([Column(head="time", is_number=True)] if estimate is not None else []),
        Column(head="where", may_cut=True),
    )


def _row(entry: Entry, trace: Trace) -> Row:
    call = entry.call
    cells = [
        call.op,
        ",".join(call.mesh_axes),
        operand_text(call),
        bytes_text(call.payload_bytes),
        bytes_text(call.wire_bytes),
        "turn" if entry.count is None else f"{entry.count:,}",
        bytes_text(entry.n_bytes),
        share_text(entry.n_bytes, trace.wire_bytes) if entry.counted else "-",
    ]
    if entry.seconds is not None:
        cells.append(seconds_text(entry.seconds))
    cells.append(_place(call.source))
    beneath = [scope_text(scope) for scope in call.within if scope.kind != "scan"]
    if not entry.counted:
        beneath.append("not counted: another branch sends more")
    if call.origin == "compiler" and any(each.origin == "program" for each in trace.collectives):
        beneath.append("inserted by the compiler")
    return Row(
        cells=tuple(cells),
        beneath=("; ".join(beneath),) if beneath else (),
        is_faint=not entry.counted,
    )


def _place(source: SourceLocation) -> str:
    return f"{short_path(source.file)}:{source.line}" if source.line else source.file


def _left_out(left: list[Entry], trace: Trace) -> tuple[str, ...]:
    if not left:
        return ()
    n_bytes = sum(entry.n_bytes for entry in left if entry.counted)
    noun = count_text(len(left), "smaller kind")
    share = share_text(n_bytes, trace.wire_bytes)
    return (f"and {noun} of call, {bytes_text(n_bytes)} ({share}); trace.collectives has them all",)


def _total_sections(trace: Trace) -> list[Section]:
    named = {op_text(op): n_bytes for op, n_bytes in trace.by_kind().items()}
    return [
        _totals("By mesh axis", trace.by_axis(), trace.wire_bytes),
        _totals("By operation", named, trace.wire_bytes),
        _totals("By line", _by_line(trace), trace.wire_bytes),
    ]


def _by_line(trace: Trace) -> dict[str, int]:
    shown: dict[str, int] = {}
    for entry in entries(trace):
        if entry.counted:
            source = entry.call.source
            function = f" ({source.function})" if source.function else ""
            name = f"{_place(source)}{function}"
            shown[name] = shown.get(name, 0) + entry.n_bytes
    return dict(sorted(shown.items(), key=lambda item: -item[1]))


def _totals(title: str, totals: Mapping[str, int], whole: int, most: int = 12) -> Section:
    columns = (
        Column(head="", may_cut=True),
        Column(head="", is_number=True),
        Column(head="", is_number=True),
        Column(head="", drop=1),
    )
    rows = [
        Row(cells=(name, bytes_text(n), share_text(n, whole), bar_text(n, max(totals.values()))))
        for name, n in list(totals.items())[:most]
    ]
    left = list(totals.values())[most:]
    more = (f"and {len(left)} more, {bytes_text(sum(left))}",) if left else ()
    return Section(title, Table(columns, tuple(rows)), more)


def bar_text(part: float, whole: float, width: int = _BAR) -> str:
    """Return a bar of block characters, to an eighth of a character.

    >>> bar_text(1, 2, 4), bar_text(3, 8, 4), bar_text(0, 8)
    ('██', '█▌', '')
    """
    eighths = round(8 * width * part / whole) if whole else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _memory_section(trace: Trace) -> list[Section]:
    if trace.memory is None:
        return []
    memory = trace.memory
    held = memory.argument_bytes + memory.output_bytes + memory.temp_bytes - memory.alias_bytes
    rows = (
        Row(cells=("arguments", bytes_text(memory.argument_bytes))),
        Row(cells=("outputs", bytes_text(memory.output_bytes))),
        Row(cells=("temporary", bytes_text(memory.temp_bytes))),
        Row(cells=("shared by arguments and outputs", bytes_text(memory.alias_bytes))),
    )
    title = f"Memory of one device: {bytes_text(held)}, as the {memory.compiler} compiler counts"
    return [Section(title, Table((Column(head=""), Column(head="", is_number=True)), rows))]


def _finding_sections(findings: tuple[Finding, ...]) -> list[Section]:
    if not findings:
        return []
    counts = [
        count_text(n, severity)
        for severity in ("error", "warning", "info")
        if (n := sum(found.severity == severity for found in findings))
    ]
    said = tuple(
        f"{found.severity} [{found.code}] {found.what}"
        + (f" ({_place(found.where)})" if found.where else "")
        for found in findings
    )
    title = f"Findings: {', '.join(counts)}; shardlab.check says more"
    return [Section(title, None, said, _INKS[findings[0].severity])]
