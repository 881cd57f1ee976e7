"""Memory bars: what a device stores, kind upon kind, against its capacity, as SVG."""

from __future__ import annotations

from dataclasses import dataclass

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text
from shardlab.planner.plan import KINDS, Kind, Plan
from shardlab.planner.plan_text import kind_text, plan_headline
from shardlab.render.palette import ALARM, FAINT, INK, LINE, PAPER, Color, slate_shade
from shardlab.render.svg_marks import (
    LINE_HEIGHT,
    MARGIN,
    SMALL_SIZE,
    Box,
    SvgCanvas,
    draw_title,
    flow_entries,
)
from shardlab.render.text_width import text_width

_WIDTH, _BAR_HEIGHT = 680.0, 40.0  # pixels
# Kinds of memory are no mesh axes: shades of slate, each segment with its name or letter.
_FILLS: dict[Kind, Color] = {
    kind: slate_shade(position, len(KINDS)) for position, kind in enumerate(KINDS)
}
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
    canvas = SvgCanvas()
    title = printable_text(f"{plan.model} on {plan.mesh_summary}")
    facts = [plan_headline(plan)]
    if old is not None:
        facts.append(f"before: {plan_headline(old)}")
    top = draw_title(canvas, title, facts, is_code=False) + LINE_HEIGHT * 1.4
    left = MARGIN + max(text_width(bar.name) for bar in bars) + 14
    bottom = top + _BAR_HEIGHT * len(bars)
    capacity = plan.budget.hbm_bytes if plan.budget else 0
    # One scale for all bars; a bar longer than the capacity shrinks the frame, not the picture.
    scale = _WIDTH / max(1, capacity, *(bar.n_bytes for bar in bars))
    for index, bar in enumerate(bars):
        _draw_bar(canvas, bar, left, top + _BAR_HEIGHT * index, scale)
    _draw_capacity(
        canvas, plan, Box(x=left, y=top - 2, width=_WIDTH, height=bottom - top + 4), scale
    )
    for index, bar in enumerate(bars):
        _draw_amounts(canvas, bar, plan, left, top + _BAR_HEIGHT * index, scale)
    _draw_legend(canvas, bars, bottom + LINE_HEIGHT * 1.7, max(canvas.right, left + _WIDTH))
    description = "; ".join(f"{bar.name}: {_bar_text(bar)}" for bar in bars)
    return canvas.to_svg(title, f"{title}. {facts[0]}. {description}")


def _bar_text(bar: Bar) -> str:
    kinds = ", ".join(
        f"{kind_text(kind)} {bytes_text(n_bytes)}" for kind, n_bytes in bar.bytes_by_kind.items()
    )
    return f"{bytes_text(bar.n_bytes)} ({kinds})" if kinds else "nothing"


def _amount_texts(bar: Bar, plan: Plan) -> tuple[str, str]:
    """Return the labels at the end of a bar: its bytes, and the bytes over the budget."""
    overflow = 0 if plan.budget is None else bar.n_bytes - plan.budget.usable_bytes
    return bytes_text(bar.n_bytes), f"{bytes_text(overflow)} too much" if overflow > 0 else ""


def _draw_bar(canvas: SvgCanvas, bar: Bar, left: float, y: float, scale: float) -> None:
    baseline = y + _BAR_HEIGHT / 2 + 4
    canvas.text(MARGIN, baseline, bar.name)
    x = left
    for kind, n_bytes in bar.bytes_by_kind.items():
        width = max(n_bytes * scale, 0.5)  # something stays visible of the smallest kind
        box = Box(x=x, y=y + 6, width=width, height=_BAR_HEIGHT - 12)
        labels = (f"{kind_text(kind)} {bytes_text(n_bytes)}", kind_text(kind), _LETTERS[kind])
        label = next((text for text in labels if text_width(text) + 10 <= width), "")
        with canvas.hover(f"{kind_text(kind)}: {bytes_text(n_bytes)}"):
            canvas.box(box, _FILLS[kind], stroke=PAPER if width > 2 else None)
            canvas.text(x + 6, baseline, label)  # clear of the lines of capacity and headroom
        x += width


def _draw_amounts(
    canvas: SvgCanvas, bar: Bar, plan: Plan, left: float, y: float, scale: float
) -> None:
    """Draw the bytes of a bar, and a frame around what is over the budget."""
    baseline = y + _BAR_HEIGHT / 2 + 4
    amount, overflow = _amount_texts(bar, plan)
    right = left + sum(max(n_bytes * scale, 0.5) for n_bytes in bar.bytes_by_kind.values())
    if overflow and plan.budget is not None:
        usable_x = left + plan.budget.usable_bytes * scale
        frame = Box(x=usable_x, y=y + 3, width=max(right - usable_x, 1.0), height=_BAR_HEIGHT - 6)
        canvas.box(frame, None, stroke=ALARM, stroke_width=2.5)
    # Clear of the frame of the capacity, which may end shortly after the bar.
    frame_right = left + plan.budget.hbm_bytes * scale if plan.budget else 0.0
    width = text_width(amount) + 16
    x = frame_right + 8 if right < frame_right < right + width else right + 8
    canvas.text(x, baseline, amount)
    canvas.text(x + text_width(amount) + 8, baseline, overflow, ALARM, is_bold=True)


def _draw_capacity(canvas: SvgCanvas, plan: Plan, frame: Box, scale: float) -> None:
    """Draw the frame of the capacity, the line of the headroom, and their labels."""
    if (budget := plan.budget) is None:
        return
    frame = Box(x=frame.x, y=frame.y, width=budget.hbm_bytes * scale, height=frame.height)
    canvas.box(frame, None, stroke=INK, stroke_width=1.4, radius=2)
    canvas.text(frame.right, frame.y - 6, f"{bytes_text(budget.hbm_bytes)} HBM", anchor="end")
    if not budget.headroom:
        return
    x = frame.x + budget.usable_bytes * scale
    canvas.line(((x, frame.y), (x, frame.bottom)), INK, width=1.4, dashes="5 4")
    label = f"{bytes_text(budget.usable_bytes)} usable, {budget.headroom * 100:g} % headroom"
    width = text_width(label, SMALL_SIZE)
    center = max(frame.x + width / 2, min(x, frame.right - width / 2))
    canvas.text(center, frame.bottom + 14, label, FAINT, anchor="middle", size=SMALL_SIZE)


def _draw_legend(canvas: SvgCanvas, bars: list[Bar], y: float, right: float) -> None:
    """Draw the kinds in the order of the bars, with their letters and bytes."""
    entries = []
    for kind in KINDS:
        amounts = [bar.bytes_by_kind.get(kind, 0) for bar in bars]
        if any(amounts):
            entries.append((kind, f"{kind_text(kind)} {' → '.join(map(bytes_text, amounts))}"))
    widths = [text_width(label) + 44 for _, label in entries]
    places = flow_entries(widths, MARGIN, right)
    for (kind, label), (x, line) in zip(entries, places, strict=True):
        top = y + line * LINE_HEIGHT * 1.2
        canvas.box(Box(x=x, y=top, width=16, height=15), _FILLS[kind], stroke=LINE, radius=2)
        canvas.text(x + 8, top + 11.5, _LETTERS[kind], anchor="middle", size=SMALL_SIZE)
        canvas.text(x + 22, top + 12, label, FAINT)
