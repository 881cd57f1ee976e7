"""Memory bars: what a device stores, kind upon kind, against its capacity, as SVG."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text
from shardlab.planner.plan import KINDS, Kind, Plan
from shardlab.planner.plan_text import kind_text, plan_headline
from shardlab.render.palette import fill_color, label_color
from shardlab.render.svg import FAINT, INK, LETTER, LINE, MARGIN, svg_header, svg_text

_WIDTH, _BAR_HEIGHT = 680.0, 40.0  # pixels
_TITLE_SCALE = 1.17  # width of a letter of the title / of other text
_OVERFLOW_COLOR = "#B3261E"  # dark enough to be readable on white
_FILLS: dict[Kind, str] = {
    "parameters": fill_color(1),
    "gradients": fill_color(2),
    "optimizer": fill_color(0),
    "activations": fill_color(3),
    "kv_cache": fill_color(6),
}
# Segments too narrow for their name get a letter: color alone is not enough.
_LETTERS = {kind: kind_text(kind)[0].upper() for kind in KINDS}


@dataclass(frozen=True)
class Bar:
    """One device, or all devices that store the same: a name, and bytes by kind."""

    name: str
    bytes_by_kind: dict[Kind, int]

    @property
    def n_bytes(self) -> int:
        return sum(self.bytes_by_kind.values())


def memory_bars(plan: Plan, old: Plan | None = None) -> list[Bar]:
    """Return one bar if all devices store the same, else the extremes; an older plan first."""
    if old is not None:
        return [Bar("before", _bytes_by_kind(old)), Bar("now", _bytes_by_kind(plan))]
    least = {kind: n_bytes for kind in KINDS if (n_bytes := plan.least_bytes_of(kind))}
    # Compared as text: a difference that no label shows is not worth a second bar.
    if bytes_text(sum(least.values())) == bytes_text(plan.bytes_per_device):
        n_devices = plan.n_devices
        name = "the device" if n_devices == 1 else f"each of {n_devices:,} devices"
        return [Bar(name, _bytes_by_kind(plan))]
    last = plan.n_devices - 1
    return [
        Bar("fullest, as device 0", _bytes_by_kind(plan)),
        Bar(f"emptiest, device {last:,}", least),
    ]


def _bytes_by_kind(plan: Plan) -> dict[Kind, int]:
    return {kind: n_bytes for kind in KINDS if (n_bytes := plan.bytes_of(kind))}


def bars_svg(plan: Plan, old: Plan | None = None) -> str:
    """Return the bars as an SVG element, with the capacity and the headroom as lines."""
    bars = memory_bars(plan, old)
    title = printable_text(f"{plan.model} on {plan.mesh_summary}")
    facts = [plan_headline(plan)]
    if old is not None:
        facts.append(f"before: {plan_headline(old)}")
    names_width = max(len(bar.name) for bar in bars) * LETTER + 14
    amounts_width = max(len(" ".join(_amount_texts(bar, plan))) for bar in bars) * LETTER + 16
    text_width = max(len(title) * LETTER * _TITLE_SCALE, *(len(fact) * LETTER for fact in facts))
    width = 2 * MARGIN + max(names_width + _WIDTH + amounts_width, text_width)
    top = MARGIN + LINE * (2.8 + len(facts))
    bottom = top + _BAR_HEIGHT * len(bars)
    legend = list(_legend_marks(bars, bottom + LINE * 2.6, width))
    height = bottom + LINE * (3.2 + legend[-1][1] if legend else 2) + MARGIN / 2
    description = "; ".join(f"{bar.name}: {_bar_text(bar)}" for bar in bars)
    parts = [*svg_header(title, f"{title}. {facts[0]}. {description}", width, height)]
    parts.append(svg_text(MARGIN, MARGIN + LINE * 0.6, title, INK, kind="t"))
    parts += [
        svg_text(MARGIN, MARGIN + LINE * (1.7 + line), fact, INK) for line, fact in enumerate(facts)
    ]
    capacity = plan.budget.hbm_bytes if plan.budget else 0
    # One scale for all bars; a bar longer than the capacity shrinks the frame, not the picture.
    scale = _WIDTH / max(1, capacity, *(bar.n_bytes for bar in bars))
    bar_left = MARGIN + names_width
    parts += _capacity_marks(plan, bar_left, top, bottom, scale)
    for index, bar in enumerate(bars):
        parts += _bar_marks(bar, plan, bar_left, top + _BAR_HEIGHT * index, scale)
    parts += [mark for mark, _ in legend]
    return "\n".join([*parts, "</svg>"])


def _bar_text(bar: Bar) -> str:
    kinds = ", ".join(
        f"{kind_text(kind)} {bytes_text(n_bytes)}" for kind, n_bytes in bar.bytes_by_kind.items()
    )
    return f"{bytes_text(bar.n_bytes)} ({kinds})" if kinds else "nothing"


def _amount_texts(bar: Bar, plan: Plan) -> tuple[str, str]:
    """Return the labels at the end of a bar: its bytes, and the bytes over the budget."""
    overflow = 0 if plan.budget is None else bar.n_bytes - plan.budget.usable_bytes
    return bytes_text(bar.n_bytes), f"{bytes_text(overflow)} too much" if overflow > 0 else ""


def _bar_marks(bar: Bar, plan: Plan, bar_left: float, y: float, scale: float) -> Iterator[str]:
    baseline = y + _BAR_HEIGHT / 2 + 4
    yield svg_text(MARGIN, baseline, bar.name, INK)
    x = bar_left
    for kind, n_bytes in bar.bytes_by_kind.items():
        width = max(n_bytes * scale, 0.5)  # something stays visible of the smallest kind
        fill = _FILLS[kind]
        hover = f"{kind_text(kind)}: {bytes_text(n_bytes)}"
        yield (
            f'<g><title>{escape(hover)}</title><rect x="{x:.1f}" y="{y + 6:g}" '
            f'width="{width:.1f}" height="{_BAR_HEIGHT - 12:g}" fill="{fill}" fill-opacity=".92" '
            'stroke="#000" stroke-opacity=".35" stroke-width=".8"/>'
        )
        labels = (f"{kind_text(kind)} {bytes_text(n_bytes)}", kind_text(kind), _LETTERS[kind])
        label = next((text for text in labels if len(text) * LETTER + 6 <= width), "")
        if len(label) > 1:  # left-aligned, clear of the lines of capacity and headroom
            yield svg_text(x + 5, baseline, label, label_color(fill))
        else:
            yield svg_text(x + width / 2, baseline, label, label_color(fill), middle=True)
        yield "</g>"
        x += width
    yield from _amount_marks(bar, plan, bar_left, x, y, scale)


def _amount_marks(
    bar: Bar, plan: Plan, bar_left: float, right: float, y: float, scale: float
) -> Iterator[str]:
    """Yield the bytes of a bar, and a frame around what is over the budget."""
    baseline = y + _BAR_HEIGHT / 2 + 4
    amount, overflow = _amount_texts(bar, plan)
    if overflow and plan.budget is not None:
        usable_x = bar_left + plan.budget.usable_bytes * scale
        yield (
            f'<rect x="{usable_x:.1f}" y="{y + 3:g}" width="{max(right - usable_x, 1):.1f}" '
            f'height="{_BAR_HEIGHT - 6:g}" fill="none" stroke="{_OVERFLOW_COLOR}" '
            'stroke-width="2.5"/>'
        )
    yield svg_text(right + 8, baseline, amount, INK)
    yield svg_text(right + 8 + (len(amount) + 1) * LETTER, baseline, overflow, _OVERFLOW_COLOR)


def _capacity_marks(
    plan: Plan, bar_left: float, top: float, bottom: float, scale: float
) -> Iterator[str]:
    """Yield the frame of the capacity, the line of the headroom, and their labels."""
    if (budget := plan.budget) is None:
        return
    capacity_x, usable_x = (
        bar_left + budget.hbm_bytes * scale,
        bar_left + budget.usable_bytes * scale,
    )
    y = top - 2
    yield (
        f'<rect x="{bar_left:.1f}" y="{y:g}" width="{capacity_x - bar_left:.1f}" '
        f'height="{bottom - y + 2:g}" fill="none" stroke="{INK}" stroke-width="1.4"/>'
    )
    label = f"{bytes_text(budget.hbm_bytes)} HBM"
    yield svg_text(capacity_x - len(label) * LETTER, y - 6, label, INK)
    if budget.headroom:
        yield (
            f'<line x1="{usable_x:.1f}" x2="{usable_x:.1f}" y1="{y:g}" y2="{bottom + 2:g}" '
            f'stroke="{INK}" stroke-width="1.4" stroke-dasharray="5 4"/>'
        )
        label = f"{bytes_text(budget.usable_bytes)} usable, {budget.headroom * 100:g} % headroom"
        label_width = len(label) * LETTER
        x = min(usable_x, bar_left + _WIDTH) - label_width / 2
        x = max(bar_left, min(x, capacity_x - label_width))
        yield svg_text(x, bottom + LINE, label, FAINT)


def _legend_marks(bars: list[Bar], y: float, width: float) -> Iterator[tuple[str, int]]:
    """Yield the entries of the legend in the order of the bars, each with its line number."""
    x, line = float(MARGIN), 0
    for kind in KINDS:
        amounts = [bar.bytes_by_kind.get(kind, 0) for bar in bars]
        if not any(amounts):
            continue
        label = f"{_LETTERS[kind]} {kind_text(kind)} {' → '.join(map(bytes_text, amounts))}"
        entry_width = len(label) * LETTER + 36
        if x + entry_width > width - MARGIN and x > MARGIN:
            x, line = float(MARGIN), line + 1
        top = y + line * LINE
        box = f'<rect x="{x:g}" y="{top - 10:g}" width="12" height="12" fill="{_FILLS[kind]}"/>'
        yield box + svg_text(x + 18, top, label, INK), line
        x += entry_width
