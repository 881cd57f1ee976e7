"""The timeline: a lane per set of mesh axes, with the calls in program order.

Widths are times on the hardware, or bytes without an estimate. A call in a loop is drawn once, with
the time of all its iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from textwrap import wrap

from shardlab._text.units import bytes_text, seconds_text
from shardlab.collectives.call import CollectiveCall
from shardlab.hardware.estimate import Estimate
from shardlab.render.palette import label_color
from shardlab.render.svg import FAINT, INK, LETTER, LINE, MARGIN, svg_header, svg_text
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_text
from shardlab.tracing.call_groups import operand_text, short_path
from shardlab.tracing.collective_style import op_fill, op_letter, op_text
from shardlab.tracing.trace import Trace, most_expensive_branches

MAX_BARS = 2000
_PLOT_WIDTH, _LANE_HEIGHT = 900.0, 30.0  # pixels
_PHASE_FILLS = {"forward": "#E3E3E3", "recompute": "#C4C4C4", "backward": "#8F8F8F"}
_TICKS = 4


@dataclass(frozen=True)
class Bar:
    """One call; `start` and `end` are fractions of the lane."""

    lane: int
    start: float
    end: float
    op: str
    phase: str
    label: str
    hover: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Lanes, the bars on them, and the total that the full width stands for."""

    title: str
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    total: float
    is_time: bool
    note: str = ""

    def amount_text(self, share: float) -> str:
        """Return the amount up to a fraction of the width, as text."""
        value = self.total * share
        return seconds_text(value) if self.is_time else bytes_text(round(value))

    @property
    def ops(self) -> list[str]:
        return list(dict.fromkeys(bar.op for bar in self.bars))

    def phase_runs(self) -> list[tuple[str, float, float]]:
        """Return runs of consecutive bars of one phase: phase, start, end."""
        runs: list[tuple[str, float, float]] = []
        for bar in self.bars:
            # Bars are in program order, so equal phases are adjacent.
            if runs and runs[-1][0] == bar.phase:
                runs[-1] = (bar.phase, runs[-1][1], bar.end)
            else:
                runs.append((bar.phase, bar.start, bar.end))
        return runs


def build_timeline(trace: Trace, estimate: Estimate | None = None) -> Timeline:
    """Return the timeline of a trace, by time if there is an estimate."""
    counted_ids = {id(call) for call in most_expensive_branches(trace.collectives)}
    sizes = [
        (call, _call_size(call, position, estimate))
        for position, call in enumerate(trace.collectives)
        if id(call) in counted_ids
    ]
    n_omitted = len(sizes) - MAX_BARS
    # An SVG with more elements is slow to open in a browser.
    sizes = sizes[:MAX_BARS]
    total = sum(size for _, size in sizes)
    lanes = list(dict.fromkeys(",".join(call.mesh_axes) for call, _ in sizes))
    bars, position = [], 0.0
    for call, size in sizes:
        share = size / total if total else 0.0
        bars.append(_make_bar(call, lanes, position, position + share, size, estimate is not None))
        # Calls follow each other: overlap is part of the estimate, not of the program order.
        position += share
    measure = f"time on {estimate.hardware}" if estimate else "bytes that one device sends"
    note = f"the first {MAX_BARS:,} calls; {n_omitted:,} more follow" if n_omitted > 0 else ""
    title = f"{trace.program}: collective calls in program order, by {measure}"
    return Timeline(
        title=title,
        lanes=tuple(lanes),
        bars=tuple(bars),
        total=total,
        is_time=estimate is not None,
        note=note,
    )


def _call_size(call: CollectiveCall, index: int, estimate: Estimate | None) -> float:
    if estimate is not None:
        return estimate.calls[index].total_seconds
    return call.wire_bytes * (1 if call.count is None else call.count)


def _make_bar(
    call: CollectiveCall, lanes: list[str], start: float, end: float, size: float, is_time: bool
) -> Bar:
    axes = ",".join(call.mesh_axes)
    count = "per iteration" if call.count is None else f"×{call.count:,}"
    amount = seconds_text(size) if is_time else bytes_text(round(size))
    location = f"{short_path(call.source.file)}:{call.source.line}"
    hover = (
        f"{op_text(call.op)} over {axes} {count}: {operand_text(call)}, {amount}, "
        f"{call.phase}, {location}"
    )
    label = call.op if call.count == 1 else f"{call.op} {count}"
    return Bar(lanes.index(axes), start, end, call.op, call.phase, label, hover)


def timeline_text(
    trace: Trace, width: int = DEFAULT_WIDTH, estimate: Estimate | None = None
) -> str:
    """Return the timeline with a letter for each operation."""
    return lines_text(timeline_lines(build_timeline(trace, estimate), width))


def timeline_lines(chart: Timeline, width: int) -> Iterator[Line]:
    """Yield the timeline's lines, each bar in the color and with the letter of its operation."""
    yield from ([Span(text=line, is_strong=True)] for line in wrap(chart.title, width))
    if not chart.bars:
        yield [Span(text="nothing is sent")]
        return
    margin = max(map(len, ("phase", *chart.lanes))) + 2
    n_characters = max(width - margin, 20)
    phases = [(start, end, phase) for phase, start, end in chart.phase_runs()]
    yield [
        Span(text=f"{'phase':<{margin}}", is_faint=True),
        *_paint_row(phases, n_characters, is_op=False),
    ]
    for lane, name in enumerate(chart.lanes):
        bars = [(bar.start, bar.end, bar.op) for bar in chart.bars if bar.lane == lane]
        yield [Span(text=f"{name:<{margin}}"), *_paint_row(bars, n_characters, is_op=True)]
    end = chart.amount_text(1)
    yield [Span(text=" " * margin + f"0{end:>{n_characters - 1}}", is_faint=True)]
    legend = [f"{op_letter(op)} {op_text(op)}" for op in chart.ops]
    legend += [f"{phase[0]} {phase}" for phase in dict.fromkeys(phase for _, _, phase in phases)]
    legend_text = ", ".join(legend) + (f"; {chart.note}" if chart.note else "")
    yield from ([Span(text=line, is_faint=True)] for line in wrap(legend_text, width))


def _paint_row(
    bars: Iterable[tuple[float, float, str]], n_characters: int, *, is_op: bool
) -> Iterator[Span]:
    """Yield the characters of a row; each bar gets at least one."""
    cells: list[str | None] = [None] * n_characters
    # Long bars first, so that short ones are drawn over them and stay visible.
    for start, end, label in sorted(bars, key=lambda bar: bar[0] - bar[1]):
        # A bar at the very end still gets the last character.
        first = min(int(start * n_characters), n_characters - 1)
        for column in range(first, max(first + 1, round(end * n_characters))):
            cells[min(column, n_characters - 1)] = label
    for cell in cells:
        if cell is None:
            yield Span(text="·", is_faint=True)
        elif is_op:
            yield Span(text=op_letter(cell), fill=op_fill(cell))
        else:
            yield Span(text=cell[0], is_faint=True)


def timeline_svg(trace: Trace, estimate: Estimate | None = None) -> str:
    """Return the timeline as an SVG element."""
    chart = build_timeline(trace, estimate)
    margin = max(map(len, ("phase", *chart.lanes))) * LETTER + 14
    top = MARGIN + LINE * 1.6
    lanes_top = top + 20.0
    bottom = lanes_top + _LANE_HEIGHT * len(chart.lanes)
    width = max(2 * MARGIN + margin + _PLOT_WIDTH, 2 * MARGIN + len(chart.title) * LETTER * 1.17)
    legend = list(legend_marks(chart.ops, MARGIN, bottom + LINE * 2.6, width))
    height = bottom + LINE * (3.2 + legend[-1][1] if legend else 2.0) + MARGIN / 2
    summary = "; ".join(bar.hover for bar in chart.bars[:40]) or "nothing is sent"
    marks = [*svg_header(chart.title, f"{chart.title}: {summary}", width, height)]
    marks.append(svg_text(MARGIN, MARGIN + LINE * 0.6, chart.title, INK, kind="t"))
    marks += _phase_marks(chart, MARGIN + margin, top)
    marks += _tick_marks(chart, MARGIN + margin, lanes_top, bottom)
    marks += _lane_marks(chart, MARGIN + margin, lanes_top)
    marks += [mark for mark, _ in legend]
    return "\n".join([*marks, "</svg>"])


def _phase_marks(chart: Timeline, x_start: float, top: float) -> Iterator[str]:
    yield svg_text(MARGIN, top + 12, "phase", FAINT)
    for phase, start, end in chart.phase_runs():
        x, width = x_start + start * _PLOT_WIDTH, max((end - start) * _PLOT_WIDTH, 0.5)
        fill = _PHASE_FILLS[phase]
        yield f"<g><title>{phase}</title>"
        yield f'<rect x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="16" fill="{fill}"/>'
        if width > len(phase) * LETTER + 6:
            yield svg_text(x + width / 2, top + 12, phase, label_color(fill), middle=True)
        yield "</g>"


def _lane_marks(chart: Timeline, x_start: float, top: float) -> Iterator[str]:
    for lane, name in enumerate(chart.lanes):
        y = top + _LANE_HEIGHT * lane
        yield svg_text(MARGIN, y + _LANE_HEIGHT / 2 + 4, name, INK)
        yield (
            f'<rect x="{x_start:g}" y="{y + 3:g}" width="{_PLOT_WIDTH:g}" '
            f'height="{_LANE_HEIGHT - 6:g}" fill="#000" fill-opacity=".04"/>'
        )
    for bar in chart.bars:
        # At least one pixel, so that a short call is not lost.
        x, width = x_start + bar.start * _PLOT_WIDTH, max((bar.end - bar.start) * _PLOT_WIDTH, 1.0)
        y, fill = top + _LANE_HEIGHT * bar.lane + 3, op_fill(bar.op)
        edge = ' stroke="#FFF" stroke-width=".7"' if width > 3 else ""
        yield f"<g><title>{escape(bar.hover)}</title>"
        yield (
            f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{_LANE_HEIGHT - 6:g}" '
            f'fill="{fill}"{edge}/>'
        )
        if width > len(bar.label) * LETTER + 6:
            yield svg_text(x + width / 2, y + 16, bar.label, label_color(fill), middle=True)
        yield "</g>"


def _tick_marks(chart: Timeline, x_start: float, top: float, bottom: float) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        x = x_start + _PLOT_WIDTH * tick / _TICKS
        yield (
            f'<line x1="{x:g}" x2="{x:g}" y1="{top:g}" y2="{bottom + 4:g}" stroke="#000" '
            'stroke-opacity=".15"/>'
        )
        label = chart.amount_text(tick / _TICKS) if tick else "0"
        offset = 0 if not tick else -len(label) * LETTER if tick == _TICKS else 0
        middle = 0 < tick < _TICKS
        yield svg_text(x + offset, bottom + LINE, label, FAINT, middle=middle)


def legend_marks(
    ops: Iterable[str], x_start: float, y: float, width: float
) -> Iterator[tuple[str, int]]:
    """Yield the marks of a legend, wrapped to the width, each with its line number."""
    x, line = x_start, 0
    for op in ops:
        label = op_text(op)
        entry_width = len(label) * LETTER + 36
        if x + entry_width > width - MARGIN and x > x_start:
            x, line = x_start, line + 1
        top = y + line * LINE
        box = f'<rect x="{x:g}" y="{top - 10:g}" width="12" height="12" fill="{op_fill(op)}"/>'
        yield box + svg_text(x + 18, top, label, INK), line
        x += entry_width
