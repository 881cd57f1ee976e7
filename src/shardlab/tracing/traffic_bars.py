"""Traffic: a bar per set of mesh axes, as long as the bytes that one device sends, by operation."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from shardlab._text.units import bytes_text, share_text
from shardlab.render.svg import draw_keys
from shardlab.render.svg_marks import LINE_HEIGHT, MARGIN, Box, SvgCanvas, draw_title
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_text
from shardlab.render.text_width import text_width
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.collective_style import call_keys, op_letter, op_paint, op_text
from shardlab.tracing.timeline import draw_bar, draw_op_legend
from shardlab.tracing.trace import Trace, most_expensive_branches

_PLOT_WIDTH, _BAR_HEIGHT = 620.0, 28.0  # pixels

Traffic = dict[str, dict[str, int]]  # mesh axes -> operation -> bytes


def traffic_by_axis(trace: Trace) -> Traffic:
    """Return the bytes one device sends, by mesh axes and then by operation, most first."""
    sums: Traffic = {}
    for call in most_expensive_branches(trace.collectives):
        n_bytes = call.wire_bytes * (1 if call.count is None else call.count)
        by_op = sums.setdefault(",".join(call.mesh_axes), {})
        by_op[call.op] = by_op.get(call.op, 0) + n_bytes
    ordered = sorted(sums.items(), key=lambda item: -sum(item[1].values()))
    return {axes: dict(sorted(ops.items(), key=lambda item: -item[1])) for axes, ops in ordered}


def traffic_text(trace: Trace, width: int = DEFAULT_WIDTH) -> str:
    """Return the bars with a letter for each operation."""
    return lines_text(traffic_lines(trace, width))


def traffic_lines(trace: Trace, width: int) -> Iterator[Line]:
    """Yield a bar for each set of mesh axes, in the colors and letters of the operations."""
    sums = traffic_by_axis(trace)
    yield from ([Span(text=line, is_strong=True)] for line in wrap(_traffic_title(trace), width))
    if not trace.wire_bytes:
        yield [Span(text="nothing is sent")]
        return
    margin = max(map(len, sums)) + 2
    totals = {axes: _total_text(sums, axes) for axes in sums}
    n_characters = max(width - margin - max(map(len, totals.values())) - 2, 10)
    largest = max(sum(ops.values()) for ops in sums.values())
    for axes, ops in sums.items():
        line = [Span(text=f"{axes:<{margin}}")]
        for op, n_bytes in ops.items():
            # At least one letter for what is sent at all.
            n_letters = max(1 if n_bytes else 0, round(n_characters * n_bytes / largest))
            color = op_paint(op, axes.split(","), trace.mesh).colors[0]
            line.append(Span(text=op_letter(op) * n_letters, fill=color))
        yield [*line, Span(text=f"  {totals[axes]}")]
    ops_present = dict.fromkeys(op for ops in sums.values() for op in ops)
    legend = ", ".join(f"{op_letter(op)} {op_text(op)}" for op in ops_present)
    yield from ([Span(text=line, is_faint=True)] for line in wrap(legend, width))


def traffic_svg(trace: Trace) -> str:
    """Return the bars as an SVG element."""
    sums, title = traffic_by_axis(trace), _traffic_title(trace)
    canvas = SvgCanvas()
    top = draw_title(canvas, title, [] if sums else ["nothing is sent"], is_code=False)
    names = max((text_width(axes, is_code=True) for axes in sums), default=0.0)
    left = MARGIN + names + 22
    present = [name for axes in sums for name in axes.split(",")]
    keys = call_keys(trace.mesh, present, has_shades=False)
    top = draw_keys(canvas, keys, top, left + _PLOT_WIDTH) + 8
    _draw_bars(canvas, sums, trace.mesh, left, top)
    ops_present = dict.fromkeys(op for ops in sums.values() for op in ops)
    bottom = top + _BAR_HEIGHT * len(sums)
    draw_op_legend(canvas, ops_present, bottom + LINE_HEIGHT * 0.6, left + _PLOT_WIDTH)
    summary = (
        "; ".join(f"over {axes} {_total_text(sums, axes)}" for axes in sums) or "nothing is sent"
    )
    return canvas.to_svg(title, f"{title}: {summary}")


def _draw_bars(canvas: SvgCanvas, sums: Traffic, mesh: MeshSizes, left: float, top: float) -> None:
    largest = max((sum(ops.values()) for ops in sums.values()), default=0)
    for row, (axes, ops) in enumerate(sums.items()):
        x, y = left, top + _BAR_HEIGHT * row
        baseline = y + _BAR_HEIGHT / 2 + 4
        swatch = Box(x=MARGIN, y=y + _BAR_HEIGHT / 2 - 6, width=12, height=12)
        canvas.paint(swatch, op_paint("psum", axes.split(","), mesh), radius=2)
        canvas.text(MARGIN + 17, baseline, axes, is_code=True)
        for op, n_bytes in ops.items():
            width = max(_PLOT_WIDTH * n_bytes / largest, 1.0) if n_bytes else 0.0
            box = Box(x=x, y=y + 4, width=width, height=_BAR_HEIGHT - 8)
            with canvas.hover(f"{op_text(op)} over {axes}: {bytes_text(n_bytes)}"):
                draw_bar(canvas, box, op_paint(op, axes.split(","), mesh))
                label = next((t for t in (op, op_letter(op)) if text_width(t) + 6 <= width), "")
                canvas.text(box.middle, baseline - 1, label, anchor="middle")
            x += width
        canvas.text(x + 8, baseline, _total_text(sums, axes))


def _traffic_title(trace: Trace) -> str:
    return f"{trace.program}: bytes that one device sends, by mesh axis"


def _total_text(sums: Traffic, axes: str) -> str:
    n_bytes = sum(sums[axes].values())
    total = sum(sum(ops.values()) for ops in sums.values())
    return f"{bytes_text(n_bytes)}, {share_text(n_bytes, total)}"
