"""Bars: what a device holds, kind upon kind, against its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text
from shardlab.planner.plan import KINDS, Kind, Plan
from shardlab.planner.plan_text import headline, kind_text
from shardlab.render.palette import fill_color, label_color
from shardlab.render.svg import FAINT, INK, LETTER, LINE, MARGIN, svg_header, svg_text

_WIDE, _BAR = 680.0, 40.0  # pixels
_OVER = "#B3261E"  # what is beyond the memory: dark enough to be read on white
_FILLS: dict[Kind, str] = {
    "parameters": fill_color(1),
    "gradients": fill_color(2),
    "optimizer": fill_color(0),
    "activations": fill_color(3),
    "kv_cache": fill_color(6),
}
_LETTERS = {kind: kind_text(kind)[0].upper() for kind in KINDS}


@dataclass(frozen=True)
class Bar:
    """One device, or all that hold the same: a name, and bytes by kind."""

    name: str
    parts: dict[Kind, int]

    @property
    def n_bytes(self) -> int:
        return sum(self.parts.values())


def bars_of(plan: Plan, old: Plan | None = None) -> list[Bar]:
    """Return one bar where all devices hold the same, else the extremes; an older plan first."""
    if old is not None:
        return [Bar("before", _parts(old)), Bar("now", _parts(plan))]
    least = {kind: n for kind in KINDS if (n := plan.least_bytes_of(kind))}
    if bytes_text(sum(least.values())) == bytes_text(plan.bytes_per_device):
        n = plan.n_devices
        name = "the device" if n == 1 else f"each of {n:,} devices"
        return [Bar(name, _parts(plan))]
    last = plan.n_devices - 1
    return [Bar("fullest, as device 0", _parts(plan)), Bar(f"emptiest, device {last:,}", least)]


def _parts(plan: Plan) -> dict[Kind, int]:
    return {kind: n for kind in KINDS if (n := plan.bytes_of(kind))}


def bars_svg(plan: Plan, old: Plan | None = None) -> str:
    """Return the bars as an SVG element, with the memory and the headroom as lines."""
    bars = bars_of(plan, old)
    title = printable_text(f"{plan.model} on {plan.mesh_words}")
    facts = [headline(plan), *([f"before: {headline(old)}"] if old is not None else [])]
    margin = max(len(bar.name) for bar in bars) * LETTER + 14
    ends = max(len(" ".join(_end_texts(bar, plan))) for bar in bars) * LETTER + 16
    words = max(len(title) * LETTER * 1.17, *(len(fact) * LETTER for fact in facts))
    width = 2 * MARGIN + max(margin + _WIDE + ends, words)
    top = MARGIN + LINE * (2.8 + len(facts))
    bottom = top + _BAR * len(bars)
    legend = list(_legend(bars, bottom + LINE * 2.6, width))
    height = bottom + LINE * (3.2 + legend[-1][1] if legend else 2) + MARGIN / 2
    said = "; ".join(f"{bar.name}: {_bar_text(bar)}" for bar in bars)
    parts = [*svg_header(title, f"{title}. {facts[0]}. {said}", width, height)]
    parts.append(svg_text(MARGIN, MARGIN + LINE * 0.6, title, INK, kind="t"))
    parts += [
        svg_text(MARGIN, MARGIN + LINE * (1.7 + n), fact, INK) for n, fact in enumerate(facts)
    ]
    room = plan.room.hbm_bytes if plan.room else 0
    scale = _WIDE / max(1, room, *(bar.n_bytes for bar in bars))
    parts += _room_marks(plan, MARGIN + margin, top, bottom, scale)
    for at, bar in enumerate(bars):
        parts += _bar_marks(bar, plan, MARGIN + margin, top + _BAR * at, scale)
    parts += [mark for mark, _ in legend]
    return "\n".join([*parts, "</svg>"])


def _bar_text(bar: Bar) -> str:
    said = ", ".join(f"{kind_text(kind)} {bytes_text(n)}" for kind, n in bar.parts.items())
    return f"{bytes_text(bar.n_bytes)} ({said})" if said else "nothing"


def _end_texts(bar: Bar, plan: Plan) -> tuple[str, str]:
    """Return what stands at the end of a bar: how much, and how much too much."""
    over = 0 if plan.room is None else bar.n_bytes - plan.room.usable_bytes
    return bytes_text(bar.n_bytes), f"{bytes_text(over)} too much" if over > 0 else ""


def _bar_marks(bar: Bar, plan: Plan, start: float, y: float, scale: float) -> Iterator[str]:
    foot = y + _BAR / 2 + 4
    yield svg_text(MARGIN, foot, bar.name, INK)
    x = start
    for kind, n_bytes in bar.parts.items():
        width = max(n_bytes * scale, 0.5)
        fill = _FILLS[kind]
        hover = f"{kind_text(kind)}: {bytes_text(n_bytes)}"
        yield (
            f'<g><title>{escape(hover)}</title><rect x="{x:.1f}" y="{y + 6:g}" '
            f'width="{width:.1f}" height="{_BAR - 12:g}" fill="{fill}" fill-opacity=".92" '
            'stroke="#000" stroke-opacity=".35" stroke-width=".8"/>'
        )
        labels = (f"{kind_text(kind)} {bytes_text(n_bytes)}", kind_text(kind), _LETTERS[kind])
        label = next((each for each in labels if len(each) * LETTER + 6 <= width), "")
        if len(label) > 1:  # at its start, clear of the lines of memory and headroom
            yield svg_text(x + 5, foot, label, label_color(fill))
        else:
            yield svg_text(x + width / 2, foot, label, label_color(fill), middle=True)
        yield "</g>"
        x += width
    yield from _end_marks(bar, plan, start, x, y, scale)


def _end_marks(
    bar: Bar, plan: Plan, start: float, end: float, y: float, scale: float
) -> Iterator[str]:
    """Yield how much it is, and a frame round what is beyond the headroom."""
    foot = y + _BAR / 2 + 4
    amount, over = _end_texts(bar, plan)
    if over and plan.room is not None:
        usable = start + plan.room.usable_bytes * scale
        yield (
            f'<rect x="{usable:.1f}" y="{y + 3:g}" width="{max(end - usable, 1):.1f}" '
            f'height="{_BAR - 6:g}" fill="none" stroke="{_OVER}" stroke-width="2.5"/>'
        )
    yield svg_text(end + 8, foot, amount, INK)
    yield svg_text(end + 8 + (len(amount) + 1) * LETTER, foot, over, _OVER)


def _room_marks(plan: Plan, start: float, top: float, bottom: float, scale: float) -> Iterator[str]:
    """Yield the frame of the memory, the line of the headroom, and words above them."""
    if plan.room is None:
        return
    room = plan.room
    whole, usable = start + room.hbm_bytes * scale, start + room.usable_bytes * scale
    y = top - 2
    yield (
        f'<rect x="{start:.1f}" y="{y:g}" width="{whole - start:.1f}" height="{bottom - y + 2:g}" '
        f'fill="none" stroke="{INK}" stroke-width="1.4"/>'
    )
    said = f"{bytes_text(room.hbm_bytes)} HBM"
    yield svg_text(whole - len(said) * LETTER, y - 6, said, INK)
    if room.headroom:
        yield (
            f'<line x1="{usable:.1f}" x2="{usable:.1f}" y1="{y:g}" y2="{bottom + 2:g}" '
            f'stroke="{INK}" stroke-width="1.4" stroke-dasharray="5 4"/>'
        )
        said = f"{bytes_text(room.usable_bytes)} usable, {room.headroom * 100:g} % headroom"
        x = min(usable, start + _WIDE) - len(said) * LETTER / 2
        yield svg_text(max(start, min(x, whole - len(said) * LETTER)), bottom + LINE, said, FAINT)


def _legend(bars: list[Bar], y: float, width: float) -> Iterator[tuple[str, int]]:
    """Yield the marks of a legend in the order of the bars, with the number of each one's line."""
    x, line = float(MARGIN), 0
    for kind in KINDS:
        amounts = [bar.parts.get(kind, 0) for bar in bars]
        if not any(amounts):
            continue
        several = " → ".join(map(bytes_text, amounts))
        words = f"{_LETTERS[kind]} {kind_text(kind)} {several}"
        room = len(words) * LETTER + 36
        if x + room > width - MARGIN and x > MARGIN:
            x, line = float(MARGIN), line + 1
        top = y + line * LINE
        fill = _FILLS[kind]
        box = f'<rect x="{x:g}" y="{top - 10:g}" width="12" height="12" fill="{fill}"/>'
        yield box + svg_text(x + 18, top, words, INK), line
        x += room
