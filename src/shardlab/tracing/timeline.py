"""The timeline: a lane per set of mesh axes, with the calls in program order.

Widths are times on the hardware, or bytes without an estimate. A call in a loop is drawn once, with
the time of all its iterations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from textwrap import wrap

from shardlab._text.units import bytes_text, seconds_text
from shardlab.collectives.call import CollectiveCall
from shardlab.hardware.estimate import Estimate
from shardlab.render.palette import FAINT, LINE, PANEL, PAPER, slate_shade
from shardlab.render.picture import Paint
from shardlab.render.svg import draw_keys
from shardlab.render.svg_marks import (
    LINE_HEIGHT,
    MARGIN,
    SMALL_SIZE,
    Box,
    SvgCanvas,
    draw_title,
    flow_entries,
)
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_text
from shardlab.render.text_width import text_width
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.call_groups import operand_text, short_path
from shardlab.tracing.collective_style import call_keys, op_letter, op_paint, op_shade, op_text
from shardlab.tracing.trace import Trace, most_expensive_branches

MAX_BARS = 2000
_PLOT_WIDTH, _LANE_HEIGHT = 900.0, 30.0  # pixels
_PHASES = ("forward", "recompute", "backward")
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
    mesh: MeshSizes
    lanes: tuple[str, ...]  # mesh axes, joined by commas
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

    def bar_paint(self, bar: Bar) -> Paint:
        """Return the paint of a bar: the hues of its mesh axes."""
        return op_paint(bar.op, self.lanes[bar.lane].split(","), self.mesh)

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
        mesh=trace.mesh,
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
    phases = [
        (start, end, Span(text=phase[0], is_faint=True)) for phase, start, end in chart.phase_runs()
    ]
    yield [Span(text=f"{'phase':<{margin}}", is_faint=True), *_paint_row(phases, n_characters)]
    for lane, name in enumerate(chart.lanes):
        bars = [
            (bar.start, bar.end, Span(text=op_letter(bar.op), fill=chart.bar_paint(bar).colors[0]))
            for bar in chart.bars
            if bar.lane == lane
        ]
        yield [Span(text=f"{name:<{margin}}"), *_paint_row(bars, n_characters)]
    end = chart.amount_text(1)
    yield [Span(text=" " * margin + f"0{end:>{n_characters - 1}}", is_faint=True)]
    legend = [f"{op_letter(op)} {op_text(op)}" for op in chart.ops]
    legend += [f"{phase[0]} {phase}" for phase in dict.fromkeys(bar.phase for bar in chart.bars)]
    legend_text = ", ".join(legend) + (f"; {chart.note}" if chart.note else "")
    yield from ([Span(text=line, is_faint=True)] for line in wrap(legend_text, width))


def _paint_row(bars: Iterable[tuple[float, float, Span]], n_characters: int) -> Iterator[Span]:
    """Yield the characters of a row; each bar gets at least one."""
    cells = [Span(text="·", is_faint=True)] * n_characters
    # Long bars first, so that short ones are drawn over them and stay visible.
    for start, end, span in sorted(bars, key=lambda bar: bar[0] - bar[1]):
        # A bar at the very end still gets the last character.
        first = min(int(start * n_characters), n_characters - 1)
        for column in range(first, max(first + 1, round(end * n_characters))):
            cells[min(column, n_characters - 1)] = span
    yield from cells


def timeline_svg(trace: Trace, estimate: Estimate | None = None) -> str:
    """Return the timeline as an SVG element."""
    chart = build_timeline(trace, estimate)
    canvas = SvgCanvas()
    facts = [chart.note] if chart.note else ["nothing is sent"] if not chart.bars else []
    top = draw_title(canvas, chart.title, facts, is_code=False)
    names = max(text_width(name, is_code=True) for name in ("phase", *chart.lanes))
    left = MARGIN + names + 22
    axes = [name for lane in chart.lanes for name in lane.split(",")]
    top = (
        draw_keys(canvas, call_keys(chart.mesh, axes, has_shades=False), top, left + _PLOT_WIDTH)
        + 8
    )
    _draw_phases(canvas, chart, left, top)
    lanes_top = top + 22.0
    bottom = lanes_top + _LANE_HEIGHT * len(chart.lanes)
    _draw_lanes(canvas, chart, left, lanes_top)
    _draw_ticks(canvas, chart, left, lanes_top, bottom)
    _draw_bars(canvas, chart, left, lanes_top)
    draw_op_legend(canvas, chart.ops, bottom + LINE_HEIGHT * 2.0, left + _PLOT_WIDTH)
    summary = "; ".join(bar.hover for bar in chart.bars[:40]) or "nothing is sent"
    return canvas.to_svg(chart.title, f"{chart.title}: {summary}")


def _draw_phases(canvas: SvgCanvas, chart: Timeline, left: float, top: float) -> None:
    canvas.text(MARGIN, top + 13, "phase", FAINT)
    for phase, start, end in chart.phase_runs():
        width = max((end - start) * _PLOT_WIDTH, 0.5)
        box = Box(x=left + start * _PLOT_WIDTH, y=top, width=width, height=17)
        with canvas.hover(phase):
            shade = slate_shade(_PHASES.index(phase) if phase in _PHASES else 0, 5)
            canvas.box(box, shade, stroke=PAPER if width > 3 else None)
            if width > text_width(phase, SMALL_SIZE) + 8:
                canvas.text(box.middle, top + 12.5, phase, anchor="middle", size=SMALL_SIZE)


def _draw_lanes(canvas: SvgCanvas, chart: Timeline, left: float, top: float) -> None:
    for lane, name in enumerate(chart.lanes):
        y = top + _LANE_HEIGHT * lane
        ground = Box(x=left, y=y + 2, width=_PLOT_WIDTH, height=_LANE_HEIGHT - 4)
        swatch = Box(x=MARGIN, y=y + _LANE_HEIGHT / 2 - 6, width=12, height=12)
        canvas.paint(swatch, op_paint("psum", name.split(","), chart.mesh), radius=2)
        canvas.text(MARGIN + 17, y + _LANE_HEIGHT / 2 + 4, name, is_code=True)
        canvas.box(ground, PANEL, radius=2)


def _draw_bars(canvas: SvgCanvas, chart: Timeline, left: float, top: float) -> None:
    for bar in chart.bars:
        # At least one pixel, so that a short call is not lost.
        width = max((bar.end - bar.start) * _PLOT_WIDTH, 1.0)
        box = Box(
            x=left + bar.start * _PLOT_WIDTH,
            y=top + _LANE_HEIGHT * bar.lane + 2,
            width=width,
            height=_LANE_HEIGHT - 4,
        )
        with canvas.hover(bar.hover):
            draw_bar(canvas, box, chart.bar_paint(bar))
            label = next(
                (text for text in (bar.label, op_letter(bar.op)) if text_width(text) + 6 <= width),
                "",
            )
            canvas.text(box.middle, box.y + box.height / 2 + 3, label, anchor="middle")


def draw_bar(canvas: SvgCanvas, box: Box, paint: Paint) -> None:
    """Draw a bar in its paint; one of few pixels in its first color only."""
    if box.width > 3:
        canvas.paint(box, paint, radius=2)
    else:
        canvas.box(box, paint.colors[0])


def _draw_ticks(canvas: SvgCanvas, chart: Timeline, left: float, top: float, bottom: float) -> None:
    for tick in range(_TICKS + 1):
        x = left + _PLOT_WIDTH * tick / _TICKS
        canvas.line(((x, top), (x, bottom + 4)), LINE)
        label = chart.amount_text(tick / _TICKS) if tick else "0"
        anchor = "start" if not tick else "end" if tick == _TICKS else "middle"
        canvas.text(x, bottom + LINE_HEIGHT, label, FAINT, anchor=anchor, size=SMALL_SIZE)


def draw_op_legend(canvas: SvgCanvas, ops: Iterable[str], y: float, right: float) -> None:
    """Draw the letter and the name of each operation."""
    names = list(ops)
    widths = [text_width(op_text(op)) + 44 for op in names]
    for op, (x, line) in zip(names, flow_entries(widths, MARGIN, right), strict=True):
        top = y + line * LINE_HEIGHT * 1.2
        box = Box(x=x, y=top, width=16, height=15)
        canvas.box(box, op_shade(op), stroke=LINE, radius=2)
        canvas.text(box.middle, top + 11.5, op_letter(op), anchor="middle", size=SMALL_SIZE)
        canvas.text(x + 22, top + 12, op_text(op), FAINT)
