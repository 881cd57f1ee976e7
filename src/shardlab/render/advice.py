"""Advice as text, in colour, as Markdown and as HTML: what fits, ranked, and why others lost."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from shardlab.layouts.amount import memory_text
from shardlab.records.advice import Advice, Candidate
from shardlab.records.step import StepTime
from shardlab.render.estimate import figure_text
from shardlab.render.markdown import sections_markdown
from shardlab.render.plain import plain
from shardlab.render.sheet import Column, Row, Section, Sheet, Table, sheet_html, sheet_lines
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text
from shardlab.render.words import count_text, seconds_text

if TYPE_CHECKING:
    from rich.text import Text

TOP = 10
_SIZES = 8  # of an axis, in one reason
# a reason that is alike for many sizes of an axis
_SIZED = re.compile(r"(\w+=|.* cut in )([\d,]+)((?: does not divide .*)?)")
_NEAREST = 3  # of those that do not fit, how many are shown


def advice_text(advice: Advice, width: int = DEFAULT_WIDTH, *, top: int = TOP) -> str:
    """Return advice as plain text."""
    return lines_text(advice_lines(advice, width, top=top))


def advice_rich(advice: Advice, width: int = DEFAULT_WIDTH, *, top: int = TOP) -> Text:
    """Return advice for rich to print in colour."""
    text = lines_rich(advice_lines(advice, width, top=top))
    text.no_wrap, text.overflow = False, "fold"  # of the command nothing may be cut off
    return text


def advice_lines(advice: Advice, width: int, *, top: int = TOP) -> Iterator[Line]:
    """Yield the best, the table, the losers by reason, what it rests on, and what to run next."""
    yield from sheet_lines(advice_sheet(advice, top=top), width)
    if advice.command:
        yield []
        yield [Span("Next", is_strong=True)]
        yield [Span(f"  {plain(advice.command)}")]  # never folded: it is to be copied


def advice_html(advice: Advice, *, top: int = TOP) -> str:
    """Return advice as an HTML fragment."""
    shown = sheet_html(advice_sheet(advice, top=top, is_wide=True))
    if not advice.command:
        return shown
    return f"{shown}\n<h4>Next</h4>\n<pre>{escape(advice.command)}</pre>"


def advice_markdown(advice: Advice, *, top: int = TOP) -> str:
    """Return advice for a design document: GitHub's tables."""
    sheet = advice_sheet(advice, top=top, is_wide=True)
    parts = [f"**{sheet.title}**", *sheet.facts, *sections_markdown(sheet.sections)]
    if advice.command:
        parts += ["### Next", f"```\n{advice.command}\n```"]
    return "\n\n".join(parts) + "\n"


def advice_sheet(advice: Advice, *, top: int = TOP, is_wide: bool = False) -> Sheet:
    """Return advice in sections; where it is wide, verdicts stand in columns and not beneath."""
    sections = []
    if advice.ranked:
        sections.append(_ranked(advice, top, is_wide))
    if others := tuple(_others(advice)):
        sections.append(Section("Why others lost", None, others))
    grounds = (*advice.formulas, *map(figure_text, advice.figures), *_efficiency(advice))
    sections.append(Section("Formulas and figures", None, tuple(map(plain, grounds))))
    if advice.notes:
        sections.append(Section("To know", None, tuple(map(plain, advice.notes))))
    return Sheet(headline(advice), tuple(_facts(advice)), tuple(sections))


def headline(advice: Advice) -> str:
    """Return the one sentence that matters: the best, or that nothing fits."""
    best = advice.best
    if best is None:
        nearest = next((each for each in advice.others if each.why == "memory"), None)
        if nearest is None:
            return "no mesh suits: each is refused below"
        return f"nothing fits: nearest is {nearest.mesh_text}, which {nearest.reason}"
    words = f"best: {best.mesh_text} with {best.strategy}"
    words += f", remat {best.remat}" if best.remat and best.step else ""
    if best.n_microbatches > 1:
        words += f", {best.n_microbatches} microbatches"
    words += f": {memory_text(best.bytes_per_device)} on a device"
    if best.step is None:
        return words
    noun = "token" if best.step.reading_seconds else "step"
    return f"{words}, {_bounds(best.step)} a {noun}, MFU {_mfu(best.step)}"


def _facts(advice: Advice) -> Iterator[str]:
    room = advice.room
    chips = f"{count_text(advice.n_chips, 'chip')} {advice.hardware}"
    if advice.n_devices != advice.n_chips:
        chips += f" ({advice.n_devices:,} devices)"
    yield plain(
        f"{advice.model}: {advice.n_parameters:,} parameters on {chips}, "
        f"{memory_text(room.usable_bytes)} of {memory_text(room.hbm_bytes)} to be used on each"
    )
    choices = advice.choices
    words = [f"optimizer {choices['optimizer']}"]
    if "batch" in choices:
        batch, sequence = int(choices["batch"]), int(choices["sequence"])
        words.append(f"batch {batch:,} x sequence {sequence:,} = {batch * sequence:,} tokens")
    words += [choices["policy"]] if "policy" in choices else []
    yield "; ".join(words)
    yield (
        f"{count_text(advice.n_candidates, 'candidate')}; of {_n_meshes(advice):,} meshes "
        f"{len(advice.ranked):,} can be used"
    )


def _n_meshes(advice: Advice) -> int:
    return len({each.mesh for each in (*advice.ranked, *advice.others)})


def _ranked(advice: Advice, top: int, is_wide: bool) -> Section:
    shown = advice.ranked[:top]
    timed = [each.step for each in shown if each.step is not None]
    columns = [Column("#", True, drop=2), Column("mesh"), Column("strategy", drop=5)]
    columns += [Column("ZeRO", True, drop=1), Column("remat"), Column("µb", True)]
    columns += [Column("GB", True)]
    if timed:
        first = "reading" if timed[0].reading_seconds else "compute"
        columns += [Column(first, True, drop=3), Column("sent", True, drop=4)]
        columns += [Column("step"), Column("MFU")]
        columns += [Column("sent over"), Column("laid"), Column("verdict")] if is_wide else []
    rows = tuple(_row(at, each, is_wide) for at, each in enumerate(shown, 1))
    lines = ["µb: microbatches of a step; GB: on each device; sent: time of communication"]
    if more := len(advice.ranked) - len(shown):
        lines.append(f"and {more:,} more meshes: --top {len(advice.ranked)}")
    order = "quickest first" if timed else "least memory first"
    return Section(f"What fits, {order}", Table(tuple(columns), rows), tuple(lines))


def _row(at: int, candidate: Candidate, is_wide: bool) -> Row:
    stage = candidate.strategy.rpartition("zero")[2] if "zero" in candidate.strategy else "-"
    cells = [str(at), candidate.mesh_text, candidate.strategy, stage, candidate.remat or "-"]
    cells += [str(candidate.n_microbatches), f"{candidate.bytes_per_device / 1e9:,.1f}"]
    if (step := candidate.step) is None:
        return Row(tuple(cells))
    sent = ", ".join(f"{axes} {seconds_text(each)}" for axes, each in step.by_axis().items())
    cells += [seconds_text(step.busy_seconds), seconds_text(step.communication_seconds)]
    cells += [_bounds(step), _mfu(step)]
    if is_wide:
        return Row((*cells, sent or "nothing", candidate.laid or "-", candidate.reason))
    said = [candidate.reason, f"sent over {sent}" if sent else ""]
    said.append(f"laid {candidate.laid}" if candidate.laid else "")
    return Row(tuple(cells), ("; ".join(filter(None, said)),))


def _others(advice: Advice) -> Iterator[str]:
    by_why: dict[str, list[Candidate]] = {}
    for each in advice.others:
        by_why.setdefault(each.why, []).append(each)
    if variants := by_why.get("variant"):
        yield (
            f"{len(variants):,} other remat policies or ZeRO stages on meshes that fit, such as "
            f"{_way(variants[0])}: {variants[0].reason}"
        )
    if large := by_why.get("memory"):
        nearest = "; ".join(f"{_way(each)} {each.reason}" for each in large[:_NEAREST])
        yield f"{len(large):,} do not fit; nearest: {nearest}"
    for why in ("batch", "model"):
        yield from _reasons(by_why.get(why, ()))


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


def _bounds(step: StepTime) -> str:
    lower, upper = seconds_text(step.lower), seconds_text(step.upper)
    if lower == upper:
        return lower
    number, unit = lower.split()
    return f"{number}-{upper}" if upper.endswith(f" {unit}") else f"{lower} - {upper}"


def _mfu(step: StepTime) -> str:
    least, most = (f"{100 * step.utilisation(each):.0f}" for each in (step.upper, step.lower))
    return f"{most} %" if least == most else f"{least}-{most} %"


def _efficiency(advice: Advice) -> Iterator[str]:
    compute, network = (advice.choices[f"{name}_efficiency"] for name in ("compute", "network"))
    if advice.formulas and (compute, network) != ("1", "1"):
        yield f"efficiency {compute} of the compute peak, {network} of the network's"
