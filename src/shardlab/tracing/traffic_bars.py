"""Traffic: a bar per set of mesh axes, as long as the bytes that one device sends, by operation."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from textwrap import wrap

from shardlab._text.units import bytes_text, share_text
from shardlab.render.svg import INK, LETTER, LINE, MARGIN, svg_header, svg_text
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_text
from shardlab.tracing.collective_style import op_fill, op_letter, op_text
from shardlab.tracing.timeline import legend_marks
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
            line.append(Span(text=op_letter(op) * n_letters, fill=op_fill(op)))
        yield [*line, Span(text=f"  {totals[axes]}")]
    ops_present = dict.fromkeys(op for ops in sums.values() for op in ops)
    legend = ", ".join(f"{op_letter(op)} {op_text(op)}" for op in ops_present)
    yield from ([Span(text=line, is_faint=True)] for line in wrap(legend, width))


def traffic_svg(trace: Trace) -> str:
    """Return the bars as an SVG element."""
    sums, title = traffic_by_axis(trace), _traffic_title(trace)
    margin = max(map(len, (*sums, "x"))) * LETTER + 14
    label_width = max((len(_total_text(sums, axes)) for axes in sums), default=0) * LETTER + 10
    width = max(
        2 * MARGIN + margin + _PLOT_WIDTH + label_width, 2 * MARGIN + len(title) * LETTER * 1.17
    )
    top = MARGIN + LINE * 1.6
    bottom = top + _BAR_HEIGHT * len(sums)
    ops_present = dict.fromkeys(op for ops in sums.values() for op in ops)
    legend = list(legend_marks(ops_present, MARGIN, bottom + LINE * 1.4, width))
    height = bottom + LINE * (2 + (legend[-1][1] if legend else 0)) + MARGIN / 2
    summary = (
        "; ".join(f"over {axes} {_total_text(sums, axes)}" for axes in sums) or "nothing is sent"
    )
    marks = [*svg_header(title, f"{title}: {summary}", width, height)]
    marks.append(svg_text(MARGIN, MARGIN + LINE * 0.6, title, INK, kind="t"))
    marks += _bar_marks(sums, MARGIN + margin, top)
    marks += [mark for mark, _ in legend]
    return "\n".join([*marks, "</svg>"])


def _bar_marks(sums: Traffic, x_start: float, top: float) -> Iterator[str]:
    largest = max((sum(ops.values()) for ops in sums.values()), default=0)
    for row, (axes, ops) in enumerate(sums.items()):
        x, y = x_start, top + _BAR_HEIGHT * row
        yield svg_text(MARGIN, y + _BAR_HEIGHT / 2 + 4, axes, INK)
        for op, n_bytes in ops.items():
            width = max(_PLOT_WIDTH * n_bytes / largest, 1.0) if n_bytes else 0.0
            hover = f"{op_text(op)} over {axes}: {bytes_text(n_bytes)}"
            yield (
                f'<rect x="{x:.1f}" y="{y + 4:g}" width="{width:.1f}" height="{_BAR_HEIGHT - 8:g}" '
                f'fill="{op_fill(op)}"><title>{escape(hover)}</title></rect>'
            )
            x += width
        yield svg_text(x + 8, y + _BAR_HEIGHT / 2 + 4, _total_text(sums, axes), INK)


def _traffic_title(trace: Trace) -> str:
    return f"{trace.program}: bytes that one device sends, by mesh axis"


def _total_text(sums: Traffic, axes: str) -> str:
    n_bytes = sum(sums[axes].values())
    total = sum(sum(ops.values()) for ops in sums.values())
    return f"{bytes_text(n_bytes)}, {share_text(n_bytes, total)}"
