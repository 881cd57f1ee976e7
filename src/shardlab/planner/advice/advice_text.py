"""Advice as text, in colour, as Markdown and as HTML: what fits, ranked, and why others lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, count_text, seconds_text
from shardlab.hardware.estimate import FigureUsed
from shardlab.hardware.estimate_text import figure_text
from shardlab.hardware.step_time import StepTime
from shardlab.planner.advice.advice import Advice, Candidate
from shardlab.render.markdown import escape_markdown, sections_markdown
from shardlab.render.sheet import (
    Column,
    Row,
    Section,
    Sheet,
    Table,
    section_lines,
    sheet_html,
    sheet_lines,
)
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text

TOP = 10
_SIZES = 8  # of an axis, in one reason
# a reason that is alike for many sizes of an axis
_SIZED = re.compile(r"(\w+=|.* cut in )([\d,]+)((?: does not divide .*)?)")
_LEAST = 0.001  # of a step's time: less is in the JSON alone
_NEAREST = 2  # of those that do not fit, how many are shown


def advice_text(advice: Advice, width: int = DEFAULT_WIDTH, *, top: int = TOP) -> str:
    """Return advice as plain text."""
    return lines_text(advice_lines(advice, width, top=top))


def advice_rich(advice: Advice, width: int = DEFAULT_WIDTH, *, top: int = TOP) -> Text:
    """Return advice for rich to print in colour."""
    text = lines_rich(advice_lines(advice, width, top=top))
    text.no_wrap, text.overflow = False, "fold"  # of the command nothing may be cut off
    return text


def advice_lines(advice: Advice, width: int, *, top: int = TOP) -> Iterator[Line]:
    """Yield the best, the table, the losers by reason, what to run next, and what it rests on."""
    yield from sheet_lines(advice_sheet(advice, top=top), width)
    if advice.command:
        yield []
        yield [Span(text="Next", is_strong=True)]
        yield [Span(text=f"  {printable_text(advice.command)}")]  # never folded: it is to be copied
    yield []
    yield from section_lines(_grounds(advice), width)


def advice_html(advice: Advice, *, top: int = TOP) -> str:
    """Return advice as an HTML fragment."""
    sheet = advice_sheet(advice, top=top, is_wide=True)
    if advice.command:
        sheet = replace(sheet, sections=(*sheet.sections, Section("Next", None, (advice.command,))))
    return sheet_html(replace(sheet, sections=(*sheet.sections, _grounds(advice))))


def advice_markdown(advice: Advice, *, top: int = TOP) -> str:
    """Return advice for a design document: GitHub's tables."""
    sheet = advice_sheet(advice, top=top, is_wide=True)
    facts = map(escape_markdown, sheet.facts)
    parts = [f"**{escape_markdown(sheet.title)}**", *facts, *sections_markdown(sheet.sections)]
    if advice.command:
        parts += ["### Next", f"```\n{advice.command}\n```"]
    return "\n\n".join([*parts, *sections_markdown([_grounds(advice)])]) + "\n"


def advice_sheet(advice: Advice, *, top: int = TOP, is_wide: bool = False) -> Sheet:
    """Return advice in sections; where it is wide, verdicts stand in columns and not beneath."""
    sections = []
    if advice.ranked:
        sections.append(_ranked(advice, top, is_wide))
    if told := tuple(_traffic(advice)):
        sections.append(Section("What the best sends", None, told))
    if others := tuple(_others(advice)):
        sections.append(Section("Why others lost", None, others))
    if advice.notes:
        sections.append(Section("To know", None, tuple(map(printable_text, advice.notes))))
    return Sheet(headline(advice), tuple(_facts(advice)), tuple(sections))


def _grounds(advice: Advice) -> Section:
    grounds = (*advice.formulas, *map(_figure, advice.figures), *_efficiency(advice))
    return Section("Formulas and figures", None, tuple(map(printable_text, grounds)))


def _figure(figure: FigureUsed) -> str:
    """Return a figure; memory in the units of the rest, powers of 1000."""
    if figure.unit == "bytes":
        return f"{figure.name} {bytes_text(figure.value)}: {figure.source}"
    return figure_text(figure)


def headline(advice: Advice) -> str:
    """Return the one sentence that matters: the best, or that nothing fits."""
    best = advice.best
    if best is not None:
        what = "the KV cache" if advice.choices["optimizer"] == "none" else "activations"
        return f"best: {_told(best)}" + ("" if best.step else f", {what} not counted")
    nearest = next((each for each in advice.others if each.why == "memory"), None)
    if nearest is None:
        return "no mesh suits: each is refused below"
    return f"nothing fits: nearest is {nearest.mesh_text}, which {nearest.reason}"


def _told(made: Candidate) -> str:
    words = f"{made.mesh_text} with {made.strategy}"
    words += f", remat {made.remat}" if made.remat and made.step else ""
    if made.n_microbatches > 1:
        words += f", {made.n_microbatches} microbatches"
    words += f": {bytes_text(made.bytes_per_device)} on a device"
    if (step := made.step) is None:
        return words
    noun = "token" if step.reading_seconds else "step"
    return f"{words}, {seconds_text(step.expected)} a {noun} ({_range(step)}), MFU {_mfu(step)}"


def _facts(advice: Advice) -> Iterator[str]:
    room = advice.room
    chips = f"{count_text(advice.n_chips, 'chip')} {advice.hardware}"
    if advice.n_devices != advice.n_chips:
        chips += f" ({advice.n_devices:,} devices)"
    yield printable_text(
        f"{advice.model}: {advice.n_parameters:,} parameters on {chips}, "
        f"{bytes_text(room.usable_bytes)} of {bytes_text(room.hbm_bytes)} to be used on each"
    )
    choices = advice.choices
    words = [f"optimizer {choices['optimizer']}"]
    if "batch" in choices:
        batch, sequence = int(choices["batch"]), int(choices["sequence"])
        words.append(f"batch {batch:,} x sequence {sequence:,} = {batch * sequence:,} tokens")
    words += [choices["policy"]] if "policy" in choices else []
    words += [f"cache {choices['cache_dtype']}"] if "cache_dtype" in choices else []
    yield "; ".join(words)
    n_meshes = len({each.mesh for each in (*advice.ranked, *advice.others)})
    yield (
        f"{count_text(advice.n_candidates, 'candidate')}; {len(advice.ranked):,} of "
        f"{n_meshes:,} {'mesh' if n_meshes == 1 else 'meshes'} can be used"
    )
    if advice.enough is not None:
        times = advice.enough_chips // advice.n_chips
        yield f"{advice.enough_chips:,} chips, {times} times as many, are enough: " + _told(
            advice.enough
        )
    elif advice.enough_chips:
        yield f"up to {advice.enough_chips:,} chips were tried, and nothing fits on these either"


def _ranked(advice: Advice, top: int, is_wide: bool) -> Section:
    shown = advice.ranked[:top]
    is_timed, is_training = shown[0].step is not None, advice.choices["optimizer"] != "none"
    columns = tuple(_columns(is_timed, is_training, is_wide))
    rows = []
    for at, each in enumerate(shown, 1):
        cells = {"#": str(at), **_cells(each)}
        beneath = (each.reason,) if each.reason and not is_wide else ()
        rows.append(Row(cells=tuple(cells[column.head] for column in columns), beneath=beneath))
    held = "on each device" + (", with the estimated activations" if is_timed else "")
    lines = [f"µb: microbatches of a step; GB: {held}"]
    lines = lines if is_training else []
    if is_timed:
        first = "compute" if is_training else "busy"
        hides = "max(compute, hides)" if is_training else "busy, the longer of compute and reading,"
        lines.append(
            f"step = {hides} + waits: "
            + (f"traffic that can hide behind {first}, and " if is_training else "")
            + "traffic that is waited for; range: from all hidden to nothing hidden"
        )
    if more := len(advice.ranked) - len(shown):
        noun = "mesh" if more == 1 else "meshes"
        lines.append(f"and {more:,} more {noun}: --top {len(advice.ranked)}")
    order = "quickest first" if is_timed else "least memory first"
    return Section(f"What fits, {order}", Table(columns, tuple(rows)), tuple(lines))


def _columns(is_timed: bool, is_training: bool, is_wide: bool) -> Iterator[Column]:
    """Yield the columns, of which those go first at the screen's edge that say least."""
    yield Column(head="#", is_number=True, drop=1)
    yield Column(head="mesh")
    if is_wide:
        yield Column(head="strategy")
    if is_training:
        yield from (
            Column(head="ZeRO", is_number=True, drop=4),
            Column(head="remat"),
            Column(head="µb", is_number=True),
        )
    yield Column(head="GB", is_number=True)
    if not is_timed:
        return
    yield Column(head="compute" if is_training else "busy", is_number=True, drop=3)
    if is_training:
        yield Column(head="hides", is_number=True, drop=5)
    yield from (
        Column(head="waits", is_number=True, drop=2),
        Column(head="step", is_number=True),
        Column(head="range"),
    )
    yield Column(head="MFU", is_number=True)
    if is_wide:
        yield from (Column(head="sent over"), Column(head="laid"), Column(head="verdict"))


def _cells(candidate: Candidate) -> dict[str, str]:
    """Return what may stand in a row, by the heads of columns."""
    stage = candidate.strategy.rpartition("zero")[2] if "zero" in candidate.strategy else "-"
    cells = {
        "mesh": candidate.mesh_text,
        "strategy": candidate.strategy,
        "ZeRO": stage,
        "remat": candidate.remat or "-",
        "µb": str(candidate.n_microbatches),
        "GB": f"{candidate.bytes_per_device / 1e9:,.1f}",
    }
    if (step := candidate.step) is None:
        return cells
    busy = seconds_text(step.busy_seconds)
    sent = ", ".join(f"{_axes(axes)} {seconds_text(each)}" for axes, each in step.by_axis().items())
    return cells | {
        "compute": busy,
        "busy": busy,
        "hides": seconds_text(step.hidden_seconds) if step.hidden_seconds else "-",
        "waits": seconds_text(step.exposed_seconds) if step.exposed_seconds else "-",
        "step": seconds_text(step.expected),
        "range": _range(step),
        "MFU": _mfu(step),
        "sent over": sent or "nothing",
        "laid": candidate.laid or "-",
        "verdict": candidate.reason,
    }


def _traffic(advice: Advice) -> Iterator[str]:
    """Yield what the best sends over which axes, whether that hides, and how the mesh lies."""
    if advice.best is None or (step := advice.best.step) is None:
        return
    for hides, word in ((False, "waited for"), (True, "hidden")):
        for axes, seconds in step.by_axis(hides=hides).items():
            if seconds < step.expected * _LEAST:
                continue
            alike = [
                each.what
                for each in step.exchanges
                if each.hides == hides and ",".join(each.axes) == axes
            ]
            what = "; ".join(dict.fromkeys(alike))
            if "," in axes:  # two axes at once
                is_cut = any(each.startswith("parameters") for each in alike)
                what += f", of tensors that {'all' if is_cut else 'none'} of these axes cut"
            yield f"over {_axes(axes)} {seconds_text(seconds)}, {word}: {what}"
    if advice.best.laid:
        yield f"laid on the network: {advice.best.laid}"


def _axes(axes: str) -> str:
    return axes.replace(",", "+")


def _others(advice: Advice) -> Iterator[str]:
    by_why: dict[str, list[Candidate]] = {}
    for each in advice.others:
        by_why.setdefault(each.why, []).append(each)
    if variants := by_why.get("variant"):
        yield (
            f"{len(variants):,} other remat policies or ZeRO stages on meshes that fit, such as "
            f"{_way(variants[0])}: {variants[0].reason}"
        )
    large = by_why.get("memory", [])
    if edge := [each for each in large if each.bytes_per_device <= advice.room.usable_bytes]:
        yield f"{len(edge):,} might fit, with --activation-margin 1; {_quickest(edge[0], advice)}"
    if large := large[len(edge) :]:
        nearest = "; ".join(f"{_way(each)} {each.reason}" for each in large[:_NEAREST])
        yield f"{len(large):,} do not fit; nearest: {nearest}"
    for why in ("batch", "model"):
        yield from _reasons(by_why.get(why, ()))


def _quickest(edge: Candidate, advice: Advice) -> str:
    """Say of the quickest that might fit whether that is worth the risk."""
    if edge.step is None or advice.best is None or advice.best.step is None:
        return f"such as {_way(edge)}, which {edge.reason}"
    if edge.step.expected > advice.best.step.expected * 0.995:
        return "none is quicker than the best"
    time = seconds_text(edge.step.expected)
    return f"the quickest: {_way(edge)} ({time}) {edge.reason}"


def _reasons(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield reasons alike as one: `21 meshes: tensor=16, 32, 64 does not divide 8 kv heads`."""
    sizes: dict[tuple[str, str], list[int]] = {}
    for each in candidates:
        found = _SIZED.match(each.reason)
        before, size, after = found.groups() if found else (each.reason, "0", "")
        sizes.setdefault((before, after), []).append(int(size.replace(",", "")))
    for (before, after), found_sizes in sizes.items():
        different = sorted(set(found_sizes))
        numbers = ", ".join(f"{size:,}" for size in different[:_SIZES])
        if len(different) > _SIZES:
            numbers += f", … {different[-1]:,}"
        n = len(found_sizes)
        yield f"{n:,} {'mesh' if n == 1 else 'meshes'}: {before}{numbers}{after}"


def _way(candidate: Candidate) -> str:
    parts = [candidate.mesh_text, candidate.strategy]
    parts += [f"remat {candidate.remat}"] if candidate.remat else []
    return " ".join(parts)


def _range(step: StepTime) -> str:
    lower, upper = seconds_text(step.lower), seconds_text(step.upper)
    if lower == upper:
        return lower
    number, unit = lower.split()
    return f"{number}-{upper}" if upper.endswith(f" {unit}") else f"{lower} - {upper}"


def _mfu(step: StepTime) -> str:
    return f"{100 * step.utilisation(step.expected):.0f} %"


def _efficiency(advice: Advice) -> Iterator[str]:
    compute, network = (advice.choices[f"{name}_efficiency"] for name in ("compute", "network"))
    if advice.formulas and (compute, network) != ("1", "1"):
        yield f"efficiency {compute} of the compute peak, {network} of the network's"
