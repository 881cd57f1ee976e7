"""Traffic: a bar for each set of mesh axes, as long as the bytes one device sends, by operation.

How each collective looks: its colour, its letter where there is no colour, its other name.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from textwrap import wrap

from shardlab._text.units import bytes_text, share_text
from shardlab.render.svg import INK, LETTER, LINE, MARGIN, svg_header, svg_text
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_text
from shardlab.tracing.collective_style import op_fill, op_letter, op_text
from shardlab.tracing.timeline import legend_marks
from shardlab.tracing.trace import Trace, worst

_WIDE, _BAR = 620.0, 28.0  # pixels

Traffic = dict[str, dict[str, int]]  # mesh axes -> operation -> bytes


def traffic(trace: Trace) -> Traffic:
    """Return the bytes one device sends, by mesh axes and then by operation, most first."""
    sums: Traffic = {}
    for call in worst(trace.collectives):
        n_bytes = call.wire_bytes * (1 if call.count is None else call.count)
        of_axes = sums.setdefault(",".join(call.mesh_axes), {})
        of_axes[call.op] = of_axes.get(call.op, 0) + n_bytes
    ordered = sorted(sums.items(), key=lambda item: -sum(item[1].values()))
    return {axes: dict(sorted(ops.items(), key=lambda item: -item[1])) for axes, ops in ordered}


def traffic_text(trace: Trace, width: int = DEFAULT_WIDTH) -> str:
    """Return the bars with a letter for each operation."""
    return lines_text(traffic_lines(trace, width))


def traffic_lines(trace: Trace, width: int) -> Iterator[Line]:
    """Yield a bar for each set of mesh axes, in the colours and letters of the operations."""
    sums = traffic(trace)
    yield from ([Span(text=line, is_strong=True)] for line in wrap(_title(trace), width))
    if not trace.wire_bytes:
        yield [Span(text="nothing is sent")]
        return
    margin = max(map(len, sums)) + 2
    ends = {axes: _end_text(sums, axes) for axes in sums}
    n = max(width - margin - max(map(len, ends.values())) - 2, 10)
    most = max(sum(ops.values()) for ops in sums.values())
    for axes, ops in sums.items():
        line = [Span(text=f"{axes:<{margin}}")]
        for op, n_bytes in ops.items():
            n_letters = max(1 if n_bytes else 0, round(n * n_bytes / most))
            line.append(Span(text=op_letter(op) * n_letters, fill=op_fill(op)))
        yield [*line, Span(text=f"  {ends[axes]}")]
    ops_met = dict.fromkeys(op for ops in sums.values() for op in ops)
    words = ", ".join(f"{op_letter(op)} {op_text(op)}" for op in ops_met)
    yield from ([Span(text=line, is_faint=True)] for line in wrap(words, width))


def traffic_svg(trace: Trace) -> str:
    """Return the bars as an SVG element."""
    sums, title = traffic(trace), _title(trace)
    margin = max(map(len, (*sums, "x"))) * LETTER + 14
    ends = max((len(_end_text(sums, axes)) for axes in sums), default=0) * LETTER + 10
    width = max(2 * MARGIN + margin + _WIDE + ends, 2 * MARGIN + len(title) * LETTER * 1.17)
    top = MARGIN + LINE * 1.6
    bottom = top + _BAR * len(sums)
    ops_met = dict.fromkeys(op for ops in sums.values() for op in ops)
    legend = list(legend_marks(ops_met, MARGIN, bottom + LINE * 1.4, width))
    height = bottom + LINE * (2 + (legend[-1][1] if legend else 0)) + MARGIN / 2
    said = "; ".join(f"over {axes} {_end_text(sums, axes)}" for axes in sums) or "nothing is sent"
    parts = [*svg_header(title, f"{title}: {said}", width, height)]
    parts.append(svg_text(MARGIN, MARGIN + LINE * 0.6, title, INK, kind="t"))
    parts += _bar_marks(sums, MARGIN + margin, top)
    parts += [mark for mark, _ in legend]
    return "\n".join([*parts, "</svg>"])


def _bar_marks(sums: Traffic, left: float, top: float) -> Iterator[str]:
    most = max((sum(ops.values()) for ops in sums.values()), default=0)
    for at, (axes, ops) in enumerate(sums.items()):
        x, y = left, top + _BAR * at
        yield svg_text(MARGIN, y + _BAR / 2 + 4, axes, INK)
        for op, n_bytes in ops.items():
            width = max(_WIDE * n_bytes / most, 1.0) if n_bytes else 0.0
            hover = f"{op_text(op)} over {axes}: {bytes_text(n_bytes)}"
            yield (
                f'<rect x="{x:.1f}" y="{y + 4:g}" width="{width:.1f}" height="{_BAR - 8:g}" '
                f'fill="{op_fill(op)}"><title>{escape(hover)}</title></rect>'
            )
            x += width
        yield svg_text(x + 8, y + _BAR / 2 + 4, _end_text(sums, axes), INK)


def _title(trace: Trace) -> str:
    return f"{trace.program}: bytes that one device sends, by mesh axis"


def _end_text(sums: Traffic, axes: str) -> str:
    n_bytes = sum(sums[axes].values())
    whole = sum(sum(ops.values()) for ops in sums.values())
    return f"{bytes_text(n_bytes)}, {share_text(n_bytes, whole)}"
