"""The timeline: a lane for each set of mesh axes, the calls on it in program order.

As wide as the time on the hardware, or as the bytes where none is given. A call in a loop is drawn
once, with the time of all its turns.
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
from shardlab.tracing.trace import Trace, worst

MOST_BARS = 2000
_WIDE, _LANE = 900.0, 30.0  # pixels
_PHASE_FILLS = {"forward": "#E3E3E3", "recompute": "#C4C4C4", "backward": "#8F8F8F"}
_TICKS = 4


@dataclass(frozen=True)
class Bar:
    """One call, from where to where along the lane (0 to 1)."""

    lane: int
    start: float
    end: float
    op: str
    phase: str
    label: str
    hover: str


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Lanes, bars on them, and what the whole width stands for."""

    title: str
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    total: float
    is_time: bool
    note: str = ""

    def amount(self, share: float) -> str:
        """Return how much lies to the left of a place."""
        whole = self.total * share
        return seconds_text(whole) if self.is_time else bytes_text(round(whole))

    @property
    def ops(self) -> list[str]:
        return list(dict.fromkeys(bar.op for bar in self.bars))

    def phases(self) -> list[tuple[str, float, float]]:
        """Return the runs of one phase, from where to where."""
        runs: list[tuple[str, float, float]] = []
        for bar in self.bars:
            if runs and runs[-1][0] == bar.phase:
                runs[-1] = (bar.phase, runs[-1][1], bar.end)
            else:
                runs.append((bar.phase, bar.start, bar.end))
        return runs


def timeline(trace: Trace, estimate: Estimate | None = None) -> Timeline:
    """Return the timeline of a trace, by time where there is an estimate."""
    kept = {id(call) for call in worst(trace.collectives)}
    sizes = [
        (call, _size(call, at, estimate))
        for at, call in enumerate(trace.collectives)
        if id(call) in kept
    ]
    left_out = len(sizes) - MOST_BARS
    sizes = sizes[:MOST_BARS]
    total = sum(size for _, size in sizes)
    lanes = list(dict.fromkeys(",".join(call.mesh_axes) for call, _ in sizes))
    bars, at = [], 0.0
    for call, size in sizes:
        share = size / total if total else 0.0
        bars.append(_bar(call, lanes, at, at + share, size, estimate is not None))
        at += share
    of = f"time on {estimate.hardware}" if estimate else "bytes that one device sends"
    note = f"the first {MOST_BARS:,} calls; {left_out:,} more follow" if left_out > 0 else ""
    title = f"{trace.program}: collective calls in program order, by {of}"
    return Timeline(
        title=title,
        lanes=tuple(lanes),
        bars=tuple(bars),
        total=total,
        is_time=estimate is not None,
        note=note,
    )


def _size(call: CollectiveCall, at: int, estimate: Estimate | None) -> float:
    if estimate is not None:
        return estimate.calls[at].total_seconds
    return call.wire_bytes * (1 if call.count is None else call.count)


def _bar(
    call: CollectiveCall, lanes: list[str], start: float, end: float, size: float, is_time: bool
) -> Bar:
    axes = ",".join(call.mesh_axes)
    times = "a turn" if call.count is None else f"×{call.count:,}"
    amount = seconds_text(size) if is_time else bytes_text(round(size))
    place = f"{short_path(call.source.file)}:{call.source.line}"
    hover = (
        f"{op_text(call.op)} over {axes} {times}: {operand_text(call)}, {amount}, "
        f"{call.phase}, {place}"
    )
    label = call.op if call.count == 1 else f"{call.op} {times}"
    return Bar(lanes.index(axes), start, end, call.op, call.phase, label, hover)


def timeline_text(
    trace: Trace, width: int = DEFAULT_WIDTH, estimate: Estimate | None = None
) -> str:
    """Return the timeline with a letter for each operation."""
    return lines_text(timeline_lines(timeline(trace, estimate), width))


def timeline_lines(one: Timeline, width: int) -> Iterator[Line]:
    """Yield the timeline's lines, each bar in the colour and with the letter of its operation."""
    yield from ([Span(text=line, is_strong=True)] for line in wrap(one.title, width))
    if not one.bars:
        yield [Span(text="nothing is sent")]
        return
    margin = max(map(len, ("phase", *one.lanes))) + 2
    n = max(width - margin, 20)
    phases = [(start, end, phase) for phase, start, end in one.phases()]
    yield [Span(text=f"{'phase':<{margin}}", is_faint=True), *_painted(phases, n, is_op=False)]
    for lane, name in enumerate(one.lanes):
        bars = [(bar.start, bar.end, bar.op) for bar in one.bars if bar.lane == lane]
        yield [Span(text=f"{name:<{margin}}"), *_painted(bars, n, is_op=True)]
    end = one.amount(1)
    yield [Span(text=" " * margin + f"0{end:>{n - 1}}", is_faint=True)]
    words = [f"{op_letter(op)} {op_text(op)}" for op in one.ops]
    words += [f"{phase[0]} {phase}" for phase in dict.fromkeys(phase for _, _, phase in phases)]
    said = ", ".join(words) + (f"; {one.note}" if one.note else "")
    yield from ([Span(text=line, is_faint=True)] for line in wrap(said, width))


def _painted(bars: Iterable[tuple[float, float, str]], n: int, *, is_op: bool) -> Iterator[Span]:
    """Yield n characters, of which each bar has at least one."""
    cells: list[str | None] = [None] * n
    # Long ones first, so that a short one is drawn over them rather than lost.
    for start, end, what in sorted(bars, key=lambda bar: bar[0] - bar[1]):
        first = min(int(start * n), n - 1)
        for at in range(first, max(first + 1, round(end * n))):
            cells[min(at, n - 1)] = what
    for cell in cells:
        if cell is None:
            yield Span(text="·", is_faint=True)
        elif is_op:
            yield Span(text=op_letter(cell), fill=op_fill(cell))
        else:
            yield Span(text=cell[0], is_faint=True)


def timeline_svg(trace: Trace, estimate: Estimate | None = None) -> str:
    """Return the timeline as an SVG element."""
    one = timeline(trace, estimate)
    margin = max(map(len, ("phase", *one.lanes))) * LETTER + 14
    top = MARGIN + LINE * 1.6
    lanes_top = top + 20.0
    bottom = lanes_top + _LANE * len(one.lanes)
    width = max(2 * MARGIN + margin + _WIDE, 2 * MARGIN + len(one.title) * LETTER * 1.17)
    legend = list(legend_marks(one.ops, MARGIN, bottom + LINE * 2.6, width))
    height = bottom + LINE * (3.2 + legend[-1][1] if legend else 2.0) + MARGIN / 2
    said = "; ".join(bar.hover for bar in one.bars[:40]) or "nothing is sent"
    parts = [*svg_header(one.title, f"{one.title}: {said}", width, height)]
    parts.append(svg_text(MARGIN, MARGIN + LINE * 0.6, one.title, INK, kind="t"))
    parts += _phase_marks(one, MARGIN + margin, top)
    parts += _tick_marks(one, MARGIN + margin, lanes_top, bottom)
    parts += _lane_marks(one, MARGIN + margin, lanes_top)
    parts += [mark for mark, _ in legend]
    return "\n".join([*parts, "</svg>"])


def _phase_marks(one: Timeline, left: float, top: float) -> Iterator[str]:
    yield svg_text(MARGIN, top + 12, "phase", FAINT)
    for phase, start, end in one.phases():
        x, width = left + start * _WIDE, max((end - start) * _WIDE, 0.5)
        fill = _PHASE_FILLS[phase]
        yield f"<g><title>{phase}</title>"
        yield f'<rect x="{x:.1f}" y="{top:g}" width="{width:.1f}" height="16" fill="{fill}"/>'
        if width > len(phase) * LETTER + 6:
            yield svg_text(x + width / 2, top + 12, phase, label_color(fill), middle=True)
        yield "</g>"


def _lane_marks(one: Timeline, left: float, top: float) -> Iterator[str]:
    for lane, name in enumerate(one.lanes):
        y = top + _LANE * lane
        yield svg_text(MARGIN, y + _LANE / 2 + 4, name, INK)
        yield (
            f'<rect x="{left:g}" y="{y + 3:g}" width="{_WIDE:g}" height="{_LANE - 6:g}" '
            'fill="#000" fill-opacity=".04"/>'
        )
    for bar in one.bars:
        x, width = left + bar.start * _WIDE, max((bar.end - bar.start) * _WIDE, 1.0)
        y, fill = top + _LANE * bar.lane + 3, op_fill(bar.op)
        edge = ' stroke="#FFF" stroke-width=".7"' if width > 3 else ""
        yield f"<g><title>{escape(bar.hover)}</title>"
        yield (
            f'<rect x="{x:.1f}" y="{y:g}" width="{width:.1f}" height="{_LANE - 6:g}" '
            f'fill="{fill}"{edge}/>'
        )
        if width > len(bar.label) * LETTER + 6:
            yield svg_text(x + width / 2, y + 16, bar.label, label_color(fill), middle=True)
        yield "</g>"


def _tick_marks(one: Timeline, left: float, top: float, bottom: float) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        x = left + _WIDE * tick / _TICKS
        yield (
            f'<line x1="{x:g}" x2="{x:g}" y1="{top:g}" y2="{bottom + 4:g}" stroke="#000" '
            'stroke-opacity=".15"/>'
        )
        words = one.amount(tick / _TICKS) if tick else "0"
        shift = 0 if not tick else -len(words) * LETTER if tick == _TICKS else 0
        middle = 0 < tick < _TICKS
        yield svg_text(x + shift, bottom + LINE, words, FAINT, middle=middle)


def legend_marks(
    ops: Iterable[str], left: float, y: float, width: float
) -> Iterator[tuple[str, int]]:
    """Yield the marks of a legend, folded to the width, and the number of each one's line."""
    x, line = left, 0
    for op in ops:
        words = op_text(op)
        room = len(words) * LETTER + 36
        if x + room > width - MARGIN and x > left:
            x, line = left, line + 1
        top = y + line * LINE
        box = f'<rect x="{x:g}" y="{top - 10:g}" width="12" height="12" fill="{op_fill(op)}"/>'
        yield box + svg_text(x + 18, top, words, INK), line
        x += room
