"""A trace as plain text, colored text and HTML: its calls, totals and estimated time."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING

from shardlab._text.units import amount_text, bytes_text, count_text, seconds_text, share_text
from shardlab.collectives.call import CollectiveCall
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.hardware.estimate import Estimate
from shardlab.hardware.estimate_text import estimate_sections
from shardlab.render.sheet import (
    Column,
    Row,
    Section,
    Sheet,
    Table,
    sheet_html,
    sheet_lines,
    truncate_start,
)
from shardlab.render.terminal import DEFAULT_WIDTH, lines_rich, lines_text
from shardlab.sharding.mesh import MeshSizes, folded_mesh_text
from shardlab.tracing.call_groups import (
    PHASES,
    CallGroup,
    group_calls,
    operand_text,
    scope_text,
    short_path,
)
from shardlab.tracing.collective_style import op_paint, op_text
from shardlab.tracing.trace import Trace, most_expensive_branches

if TYPE_CHECKING:
    from rich.text import Text

MAX_ROWS = 40
_BAR_WIDTH = 20
_SEVERITY_COLORS = {"error": "red", "warning": "yellow", "info": "blue"}


def trace_text(trace: Trace, width: int = DEFAULT_WIDTH, estimate: Estimate | None = None) -> str:
    """Return a trace as plain text with lines of at most `width` characters."""
    return lines_text(sheet_lines(trace_sheet(trace, estimate), width))


def trace_rich(trace: Trace, width: int = DEFAULT_WIDTH, estimate: Estimate | None = None) -> Text:
    """Return a trace in color, for rich."""
    return lines_rich(sheet_lines(trace_sheet(trace, estimate), width))


def shorten_location(location: str, max_length: int) -> str:
    """Return a place in the source in that many characters, by words; the line number stays.

    >>> [shorten_location("nets/model.py:41 (layer)", n) for n in (24, 16, 11, 6)]
    ['nets/model.py:41 (layer)', 'nets/model.py:41', 'model.py:41', '…py:41']
    """
    place = location.split(" (")[0]
    candidates = (location, place, place.rpartition("/")[2])
    fitting = next((text for text in candidates if len(text) <= max_length), None)
    return truncate_start(candidates[-1], max_length) if fitting is None else fitting


def trace_html(trace: Trace, estimate: Estimate | None = None) -> str:
    """Return a trace as an HTML fragment, with pictures if anything is sent."""
    from shardlab.tracing.ring_steps_picture import steps_svg
    from shardlab.tracing.timeline import timeline_svg
    from shardlab.tracing.traffic_bars import traffic_svg

    pictures = []
    if trace.wire_bytes:
        largest = max(most_expensive_branches(trace.collectives), key=_sent_bytes)
        pictures = [timeline_svg(trace, estimate), traffic_svg(trace)]
        pictures.append(steps_svg(largest, trace.mesh))  # who sends what to whom, with arrows
    return sheet_html(trace_sheet(trace, estimate), pictures=pictures)


def trace_sheet(trace: Trace, estimate: Estimate | None = None) -> Sheet:
    """Return the sections of a trace: findings first, then time, calls and totals."""
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
    return Sheet(_trace_title(trace), _trace_facts(trace), tuple(sections))


def _trace_title(trace: Trace) -> str:
    n_devices = prod(size for _, size in trace.mesh)
    return (
        f"{trace.program} on mesh {folded_mesh_text(trace.mesh)}, {count_text(n_devices, 'device')}"
    )


def trace_line(trace: Trace) -> str:
    """Return a trace in one short line: the program, its mesh, what a device sends and computes."""
    facts = "sends nothing"
    if trace.collectives:
        calls = most_expensive_branches(trace.collectives)
        n_calls = sum(1 if call.count is None else call.count for call in calls)
        facts = f"sends {bytes_text(trace.wire_bytes)} in {count_text(n_calls, 'call')}"
    if trace.flops is not None:
        facts += f", computes {amount_text(trace.flops, 'FLOP')}"
    # The mesh without its axes of size 1, whose number is in the title of the first program.
    sizes = ",".join(f"{name}={size}" for name, size in trace.mesh if size > 1)
    return f"{trace.program} on {sizes or '1 device'}: {facts}"


def _trace_facts(trace: Trace) -> tuple[str, ...]:
    if not trace.collectives:
        communication = "no collective calls: nothing is sent"
    else:
        calls = most_expensive_branches(trace.collectives)
        n_calls = sum(1 if call.count is None else call.count for call in calls)
        lines = {call.source for call in calls}
        communication = (
            f"each device sends {bytes_text(trace.wire_bytes)} in "
            f"{count_text(n_calls, 'collective call')} from {count_text(len(lines), 'line')}"
        )
        if all(call.origin == "compiler" for call in calls):
            communication += ", all inserted by the compiler"
    if trace.flops is None:
        return (communication,)
    return (communication, f"each device computes {amount_text(trace.flops, 'FLOP')}")


def _calls_section(trace: Trace, estimate: Estimate | None) -> list[Section]:
    """Return all calls by phase, in program order; of very many the smallest are omitted."""
    groups = group_calls(trace, estimate)
    largest = sorted(groups, key=lambda group: -group.n_bytes)[:MAX_ROWS]
    # The largest are chosen by bytes, then shown in program order.
    visible_ids = {id(group) for group in largest}
    rows = []
    for phase in PHASES:
        phase_groups = [group for group in groups if group.call.phase == phase]
        if phase_groups:
            n_bytes = sum(group.n_bytes for group in phase_groups if group.is_counted)
            share = share_text(n_bytes, trace.wire_bytes)
            rows.append(Row(cells=(), heading=f"{phase}: {bytes_text(n_bytes)}, {share}"))
            rows += [_call_row(group, trace) for group in phase_groups if id(group) in visible_ids]
    omitted = _omitted_text([group for group in groups if id(group) not in visible_ids], trace)
    return [Section("Calls", Table(_columns(estimate), tuple(rows)), omitted)] if rows else []


def _columns(estimate: Estimate | None) -> tuple[Column, ...]:
    return (
        Column(head="operation", is_code=True),
        Column(head="over", is_code=True),
        Column(head="operand", drop=1, is_code=True),
        Column(head="payload", is_number=True, drop=4),
        Column(head="sends", is_number=True, drop=3),
        Column(head="×", is_number=True, drop=1),
        Column(head="total", is_number=True),
        Column(head="share", is_number=True, drop=2),
        *([Column(head="time", is_number=True)] if estimate is not None else []),
        Column(head="where", can_truncate=True, is_code=True, truncate=shorten_location),
    )


def _call_row(group: CallGroup, trace: Trace) -> Row:
    call = group.call
    cells = [
        call.op,
        ",".join(call.mesh_axes),
        operand_text(call),
        bytes_text(call.payload_bytes),
        bytes_text(call.wire_bytes),
        "/iter" if group.count is None else f"{group.count:,}",
        bytes_text(group.n_bytes),
        share_text(group.n_bytes, trace.wire_bytes) if group.is_counted else "-",
    ]
    if group.seconds is not None:
        cells.append(seconds_text(group.seconds))
    cells.append(_location_text(call.source))
    remarks = [scope_text(scope) for scope in call.within if scope.kind != "scan"]
    if not group.is_counted:
        remarks.append("not counted: another branch sends more")
    if call.origin == "compiler" and any(
        other_call.origin == "program" for other_call in trace.collectives
    ):
        remarks.append("inserted by the compiler")
    return Row(
        cells=tuple(cells),
        notes=("; ".join(remarks),) if remarks else (),
        is_faint=not group.is_counted,
    )


def _location_text(source: SourceLocation) -> str:
    return f"{short_path(source.file)}:{source.line}" if source.line else source.file


def _omitted_text(omitted: list[CallGroup], trace: Trace) -> tuple[str, ...]:
    if not omitted:
        return ()
    n_bytes = sum(group.n_bytes for group in omitted if group.is_counted)
    share = share_text(n_bytes, trace.wire_bytes)
    noun = count_text(len(omitted), "smaller group")
    return (f"and {noun} of calls, {bytes_text(n_bytes)} ({share}); see trace.collectives",)


def _total_sections(trace: Trace) -> list[Section]:
    by_kind = {op_text(op): n_bytes for op, n_bytes in trace.by_kind().items()}
    return [
        _totals_section("By mesh axis", trace.by_axis(), trace.wire_bytes, mesh=trace.mesh),
        _totals_section("By operation", by_kind, trace.wire_bytes),
        _totals_section("By line", _bytes_by_line(trace), trace.wire_bytes),
    ]


def _bytes_by_line(trace: Trace) -> dict[str, int]:
    totals: dict[str, int] = {}
    for group in group_calls(trace):
        if group.is_counted:
            source = group.call.source
            function = f" ({source.function})" if source.function else ""
            name = f"{_location_text(source)}{function}"
            totals[name] = totals.get(name, 0) + group.n_bytes
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def _sent_bytes(call: CollectiveCall) -> int:
    return call.wire_bytes * (1 if call.count is None else call.count)


def _totals_section(
    title: str,
    totals: Mapping[str, int],
    total: int,
    max_rows: int = 12,
    mesh: MeshSizes = (),
) -> Section:
    """Return a row with a bar for each name; of a mesh, names are axes, and bars their hues."""
    columns = (
        Column(head="", can_truncate=True),
        Column(head="", is_number=True),
        Column(head="", is_number=True),
        Column(head="", drop=1, is_bar=True),
    )
    rows = [
        Row(
            cells=(name, bytes_text(n), share_text(n, total), bar_text(n, max(totals.values()))),
            bar_color=op_paint("psum", name.split(","), mesh).colors[0] if mesh else None,
        )
        for name, n in list(totals.items())[:max_rows]
    ]
    omitted = list(totals.values())[max_rows:]
    omitted_text = (f"and {len(omitted)} more, {bytes_text(sum(omitted))}",) if omitted else ()
    return Section(title, Table(columns, tuple(rows)), omitted_text)


def bar_text(value: float, maximum: float, width: int = _BAR_WIDTH) -> str:
    """Return a bar of block characters, to an eighth of a character.

    >>> bar_text(1, 2, 4), bar_text(3, 8, 4), bar_text(0, 8)
    ('██', '█▌', '')
    """
    eighths = round(8 * width * value / maximum) if maximum else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _memory_section(trace: Trace) -> list[Section]:
    if trace.memory is None:
        return []
    memory = trace.memory
    n_bytes = memory.argument_bytes + memory.output_bytes + memory.temp_bytes - memory.alias_bytes
    rows = (
        Row(cells=("arguments", bytes_text(memory.argument_bytes))),
        Row(cells=("outputs", bytes_text(memory.output_bytes))),
        Row(cells=("temporary", bytes_text(memory.temp_bytes))),
        Row(cells=("shared by arguments and outputs", bytes_text(memory.alias_bytes))),
    )
    title = f"Memory per device: {bytes_text(n_bytes)}, reported by XLA for {memory.compiler}"
    return [Section(title, Table((Column(head=""), Column(head="", is_number=True)), rows))]


def _finding_sections(findings: tuple[Finding, ...]) -> list[Section]:
    if not findings:
        return []
    counts = [
        count_text(n, severity)
        for severity in ("error", "warning", "info")
        if (n := sum(finding.severity == severity for finding in findings))
    ]
    lines = tuple(
        f"{finding.severity} [{finding.code}] {finding.what}"
        + (f" ({_location_text(finding.where)})" if finding.where else "")
        for finding in findings
    )
    title = f"Findings: {', '.join(counts)}; see shardlab.check for details"
    return [Section(title, None, lines, _SEVERITY_COLORS[findings[0].severity])]
