"""Advice as text, in color, as Markdown and as HTML: what fits, ranked, and why others lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, count_text, seconds_text
from shardlab.hardware.estimate import FigureUsed
from shardlab.hardware.estimate_text import figure_text
from shardlab.hardware.step_time import StepTime
from shardlab.planner.advice.advice import Advice, Candidate
from shardlab.planner.advice.candidate_ranking import axes_label
from shardlab.planner.advice.mesh_conventions import COMPARISON_ERROR
from shardlab.planner.timing.step_text import step_section
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

DEFAULT_TOP = 10  # meshes in the table
_NEXT_TITLE = "What to run next"
_MAX_SIZES = 8  # of a mesh axis, in one reason
_MIN_SHARE = 0.001  # of a step's time: shorter communication is in the JSON only
_MAX_NEAREST = 2  # of the candidates that do not fit
_MAIN_FORMULAS = ("step:", "range:")
_OVERLAP_FIGURES = ("overlap_loss", "exposed_share")
_FASTER = 0.995  # ratio of times, from which on a candidate counts as faster


def advice_text(advice: Advice, width: int = DEFAULT_WIDTH, *, top: int = DEFAULT_TOP) -> str:
    """Return advice as plain text."""
    return lines_text(advice_lines(advice, width, top=top))


def advice_rich(advice: Advice, width: int = DEFAULT_WIDTH, *, top: int = DEFAULT_TOP) -> Text:
    """Return advice for rich to print in color."""
    text = lines_rich(advice_lines(advice, width, top=top))
    text.no_wrap, text.overflow = False, "fold"  # nothing of the command may be cut off
    return text


def advice_lines(
    advice: Advice, width: int, *, top: int = DEFAULT_TOP, with_formulas: bool = True
) -> Iterator[Line]:
    """Yield the best, the table, the losers by reason, what to run next, and the formulas.

    Without formulas only the assumptions that matter most, and how to get the others.
    """
    yield from sheet_lines(advice_sheet(advice, top=top), width)
    if advice.command:
        yield []
        yield [Span(text=_NEXT_TITLE, is_strong=True)]
        yield [Span(text=f"  {printable_text(advice.command)}")]  # not wrapped, to be copied
    yield []
    is_complete = with_formulas or not advice.formulas  # a figure or two without a step
    section = _formulas_section(advice) if is_complete else _assumptions_section(advice)
    yield from section_lines(section, width)


def advice_html(advice: Advice, *, top: int = DEFAULT_TOP) -> str:
    """Return advice as an HTML fragment."""
    sheet = advice_sheet(advice, top=top, is_wide=True)
    sections = [*sheet.sections]
    if advice.command:
        sections.append(Section(_NEXT_TITLE, None, (advice.command,)))
    return sheet_html(replace(sheet, sections=(*sections, _formulas_section(advice))))


def advice_markdown(advice: Advice, *, top: int = DEFAULT_TOP) -> str:
    """Return advice for a design document: GitHub's tables."""
    sheet = advice_sheet(advice, top=top, is_wide=True)
    facts = map(escape_markdown, sheet.facts)
    parts = [f"**{escape_markdown(sheet.title)}**", *facts, *sections_markdown(sheet.sections)]
    if advice.command:
        parts += [f"### {_NEXT_TITLE}", f"```\n{advice.command}\n```"]
    return "\n\n".join([*parts, *sections_markdown([_formulas_section(advice)])]) + "\n"


def advice_sheet(advice: Advice, *, top: int = DEFAULT_TOP, is_wide: bool = False) -> Sheet:
    """Return advice in sections; a wide one has verdicts in a column, not below each row."""
    sections = []
    if advice.ranked:
        sections.append(_ranking_section(advice, top, is_wide))
    if advice.requested is not None:
        sections.append(_requested_section(advice, advice.requested))
    if advice.best is not None and advice.best.step is not None:
        sections.append(step_section(advice.best.step, "Time of the best"))
    if communication := tuple(_communication_lines(advice)):
        title = "Communication of the best"
        sections.append(Section(title, None, communication))
    if losers := tuple(_loser_lines(advice)):
        sections.append(Section("Why the others lost", None, losers))
    if advice.notes:
        sections.append(Section("Notes", None, tuple(map(printable_text, advice.notes))))
    return Sheet(advice_headline(advice), tuple(_advice_facts(advice)), tuple(sections))


def _requested_section(advice: Advice, requested: Candidate) -> Section:
    """Return the mesh that the user named: its rank, its time, and why it lost."""
    meshes = [candidate.mesh for candidate in advice.ranked]
    rank = f"rank {meshes.index(requested.mesh) + 1}; " if requested.mesh in meshes else ""
    text = _candidate_text(requested) if requested.strategy else requested.mesh_text
    source = f"mesh of {advice.requested_source}" if advice.requested_source else "mesh you named"
    title = printable_text(f"The {source}: {rank}{requested.reason}")
    if requested.step is None:
        return Section(title, None, (text,))
    return replace(step_section(requested.step, ""), title=title, lines=(text,))


def _formulas_section(advice: Advice) -> Section:
    figures = map(_figure_line, advice.figures)
    lines = (*advice.formulas, *figures, *_efficiency_lines(advice))
    return Section("Formulas and figures", None, tuple(map(printable_text, lines)))


def _assumptions_section(advice: Advice) -> Section:
    """Return the formula of a step, its range, and which share of the peaks is reached."""
    main = [text for text in advice.formulas if text.startswith(_MAIN_FORMULAS)]
    shares = [
        f"{figure.name} {figure.value:g}"
        for figure in advice.figures
        if figure.name.endswith("_efficiency") or figure.name in _OVERLAP_FIGURES
    ]
    lines = [*main, *_efficiency_lines(advice)]
    lines += [f"shares of the peaks: {', '.join(shares)}"] if shares else []
    n_more = len(advice.formulas) + len(advice.figures)
    lines.append(f"--formulas prints all {n_more} formulas and hardware figures, with sources")
    return Section("Assumptions", None, tuple(map(printable_text, lines)))


def _figure_line(figure: FigureUsed) -> str:
    """Return a figure; memory in the units of the rest, powers of 1000."""
    if figure.unit == "bytes":
        return f"{figure.name} {bytes_text(figure.value)}: {figure.source}"
    return figure_text(figure)


def _is_training(advice: Advice) -> bool:
    return advice.choices["optimizer"] != "none"


def advice_headline(advice: Advice) -> str:
    """Return the one sentence that matters: the best, or that nothing fits."""
    best = advice.best
    if best is not None and best.step is not None:
        return f"best: {_candidate_text(best)}"
    if best is not None:
        missing = "activations" if _is_training(advice) else "the KV cache"
        return f"least memory: {_candidate_text(best)}, {missing} not counted"
    nearest = next((loser for loser in advice.others if loser.loss_kind == "memory"), None)
    if nearest is None:
        return "no usable mesh: the reasons are below"
    return f"nothing fits: nearest is {nearest.mesh_text}, which {nearest.reason}"


def _candidate_text(candidate: Candidate) -> str:
    text = f"{candidate.mesh_text} with {candidate.strategy}"
    if candidate.remat and candidate.step:
        text += f", remat {candidate.remat}"
    if candidate.n_microbatches > 1:
        text += f", {candidate.n_microbatches} microbatches"
    text += f": {bytes_text(candidate.bytes_per_device)} per device"
    if (step := candidate.step) is None:
        return text
    time = f"{seconds_text(step.expected)} per {step.unit} ({_time_range(step)})"
    return f"{text}, {time}, MFU {_mfu_text(step)}"


def _advice_facts(advice: Advice) -> Iterator[str]:
    budget = advice.budget
    devices = count_text(advice.n_devices, f"{advice.hardware} device")
    if advice.n_devices != advice.n_chips:
        devices += f" ({count_text(advice.n_chips, 'chip')})"
    yield printable_text(
        f"{advice.model}: {advice.n_parameters:,} parameters on {devices}, "
        f"{bytes_text(budget.usable_bytes)} of {bytes_text(budget.hbm_bytes)} usable on each"
    )
    choices = advice.choices
    options = [f"optimizer {choices['optimizer']}"]
    if "batch" in choices:
        batch, sequence = int(choices["batch"]), int(choices["sequence"])
        options.append(f"batch {batch:,} x sequence {sequence:,} = {batch * sequence:,} tokens")
    options += [choices["policy"]] if "policy" in choices else []
    options += [f"cache {choices['cache_dtype']}"] if "cache_dtype" in choices else []
    yield "; ".join(options)
    n_meshes = len({candidate.mesh for candidate in (*advice.ranked, *advice.others)})
    yield (
        f"{count_text(advice.n_candidates, 'candidate')}; {len(advice.ranked):,} of "
        f"{n_meshes:,} {'mesh fits' if n_meshes == 1 else 'meshes fit'}"
    )
    if advice.sufficient is not None:
        factor = advice.sufficient_devices // advice.n_devices
        yield (
            f"{advice.sufficient_devices:,} devices, {factor} times as many, are enough: "
            + _candidate_text(advice.sufficient)
        )
    elif advice.devices_tried:
        yield f"up to {advice.devices_tried:,} devices were tried, and nothing fits on these either"


def _ranking_section(advice: Advice, top: int, is_wide: bool) -> Section:
    visible = advice.ranked[:top]
    is_timed, is_training = visible[0].step is not None, _is_training(advice)
    # Cells are looked up by the heads of the columns, which depend on the kind of advice.
    columns = tuple(_ranking_columns(is_timed, is_training, is_wide))
    rows = []
    for number, candidate in enumerate(visible, 1):
        cells = {"#": str(number), **_ranking_cells(candidate)}
        beneath = (candidate.reason,) if candidate.reason and not is_wide else ()
        rows.append(Row(cells=tuple(cells[column.head] for column in columns), notes=beneath))
    lines = tuple(_ranking_legend(advice, len(visible), is_timed, is_training))
    title = f"What fits, {_title_order(advice, is_timed, is_training)}"
    return Section(title, Table(columns, tuple(rows)), lines)


def _title_order(advice: Advice, is_timed: bool, is_training: bool) -> str:
    """Return in which order meshes are listed: times alone would look unsorted."""
    if not is_timed:
        return "least memory first"
    if not is_training:
        return "best first"
    percent = f"{100 * COMPARISON_ERROR:.0f} %"
    order = f"best first: by step time, a usual mesh before one up to {percent} faster"
    software = list(dict.fromkeys(candidate.framework for candidate in advice.ranked))
    if len(software) > 1:
        order += f"; {' and '.join(software)} alternate (--framework ranks one)"
    return order


def order_text(advice: Advice) -> str:
    """Return why rows are not in the order of their step times alone; empty if they are."""
    if not advice.ranked or advice.ranked[0].step is None or not _is_training(advice):
        return ""
    percent = f"{100 * COMPARISON_ERROR:.0f} %"
    return (
        f"by step time; a mesh that recipes do not use must be {percent} faster, the error of a "
        "comparison"
    )


def _ranking_legend(
    advice: Advice, n_visible: int, is_timed: bool, is_training: bool
) -> Iterator[str]:
    if is_training:
        memory = "per device" + (", with the estimated activations" if is_timed else "")
        yield f"µb: microbatches per step; GB: {memory}"
    if is_timed:
        step = "max(compute, overlapped)" if is_training else "operations"
        waiting = " + bubble" if any(_has_stages(candidate) for candidate in advice.ranked) else ""
        yield (
            f"step = {step} + exposed communication{waiting}; range: 90 % of published runs are "
            "within it"
        )
    if n_hidden := len(advice.ranked) - n_visible:
        noun = "mesh" if n_hidden == 1 else "meshes"
        yield f"and {n_hidden:,} more {noun}: --top {len(advice.ranked)}"


def _has_stages(candidate: Candidate) -> bool:
    return candidate.step is not None and candidate.step.bubble_seconds > 0


def _ranking_columns(is_timed: bool, is_training: bool, is_wide: bool) -> Iterator[Column]:
    """Yield the columns; on a narrow screen those with the highest `drop` go first."""
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
        yield Column(head="overlapped", is_number=True, drop=5)
    yield from (
        Column(head="exposed", is_number=True, drop=2),
        Column(head="step", is_number=True),
        Column(head="range"),
        Column(head="MFU", is_number=True),
    )
    if is_wide:
        yield from (
            Column(head="communication"),
            Column(head="placement"),
            Column(head="verdict"),
        )


def _ranking_cells(candidate: Candidate) -> dict[str, str]:
    """Return the cells of a row by the heads of their columns."""
    cells = {
        "mesh": candidate.mesh_text,
        "strategy": candidate.strategy,
        "ZeRO": str(candidate.zero) if candidate.zero else "-",
        "remat": candidate.remat or "-",
        "µb": str(candidate.n_microbatches),
        "GB": f"{candidate.bytes_per_device / 1e9:,.1f}",
    }
    if (step := candidate.step) is None:
        return cells
    busy = seconds_text(step.busy_seconds)
    communication = ", ".join(
        f"{axes_label(axes)} {seconds_text(seconds)}" for axes, seconds in step.by_axis().items()
    )
    return cells | {
        "compute": busy,
        "busy": busy,
        "overlapped": seconds_text(step.overlapped_seconds) if step.overlapped_seconds else "-",
        "exposed": seconds_text(step.exposed_seconds) if step.exposed_seconds else "-",
        "step": seconds_text(step.expected),
        "range": _time_range(step),
        "MFU": _mfu_text(step),
        "communication": communication or "nothing",
        "placement": candidate.placement or "-",
        "verdict": candidate.reason,
    }


def _communication_lines(advice: Advice) -> Iterator[str]:
    """Yield the communication of the best over each axis, and the placement of its mesh."""
    if advice.best is None or (step := advice.best.step) is None:
        return
    for is_overlapped, label in ((False, "exposed"), (True, "overlapped")):
        for axes, seconds in step.by_axis(is_overlapped=is_overlapped).items():
            if seconds < step.expected * _MIN_SHARE:
                continue
            # The same payload is sent forward and backward: each is named once.
            payloads = [
                collective.what
                for collective in step.collectives
                if collective.is_overlapped == is_overlapped and ",".join(collective.axes) == axes
            ]
            text = "; ".join(dict.fromkeys(payloads))
            if "," in axes:  # a collective over two axes at once
                is_sharded = any(payload.startswith("parameters") for payload in payloads)
                text += f", of tensors sharded over {'all' if is_sharded else 'none'} of these axes"
            yield f"over {axes_label(axes)} {seconds_text(seconds)}, {label}: {text}"
    if advice.best.placement:
        yield f"placement on the network: {advice.best.placement}"


def _loser_lines(advice: Advice) -> Iterator[str]:
    losers: dict[str, list[Candidate]] = {}
    for candidate in advice.others:
        losers.setdefault(candidate.loss_kind, []).append(candidate)
    if variants := losers.get("variant"):
        yield (
            f"{len(variants):,} other remat policies or ZeRO stages on meshes that fit, such as "
            f"{_variant_text(variants[0])}: {variants[0].reason}"
        )
    too_large = losers.get("memory", [])
    usable = advice.budget.usable_bytes
    # `rank_candidates` puts those that fit by their estimate first.
    borderline = [candidate for candidate in too_large if candidate.bytes_per_device <= usable]
    if borderline:
        fastest = _borderline_text(borderline[0], advice)
        yield f"{len(borderline):,} might fit, with --activation-margin 1; {fastest}"
    if too_large := too_large[len(borderline) :]:
        nearest = "; ".join(
            f"{_variant_text(candidate)} {candidate.reason}"
            for candidate in too_large[:_MAX_NEAREST]
        )
        yield f"{len(too_large):,} do not fit; nearest: {nearest}"
    for loss_kind in ("batch", "model"):
        yield from _rejection_lines(losers.get(loss_kind, ()))


def _borderline_text(borderline: Candidate, advice: Advice) -> str:
    """Return whether the fastest that might fit is worth the risk."""
    if borderline.step is None or advice.best is None or advice.best.step is None:
        return f"such as {_variant_text(borderline)}, which {borderline.reason}"
    if borderline.step.expected > advice.best.step.expected * _FASTER:
        return "none is faster than the best"
    time = seconds_text(borderline.step.expected)
    return f"the fastest: {_variant_text(borderline)} ({time}) {borderline.reason}"


def _rejection_lines(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield equal reasons as one: `21 meshes: 8 experts are not divisible by expert=3, 6, 12`."""
    sizes_by_reason: dict[tuple[str, str], list[int]] = {}
    for candidate in candidates:
        if (rejection := candidate.rejection) is not None:
            reason = (rejection.before, rejection.after)
            sizes_by_reason.setdefault(reason, []).append(rejection.size)
    for (before, after), sizes in sizes_by_reason.items():
        distinct = sorted(set(sizes))
        listing = ", ".join(f"{size:,}" for size in distinct[:_MAX_SIZES])
        if len(distinct) > _MAX_SIZES:
            listing += f", … {distinct[-1]:,}"
        noun = "mesh" if len(sizes) == 1 else "meshes"
        yield f"{len(sizes):,} {noun}: {before}{listing}{after}"


def _variant_text(candidate: Candidate) -> str:
    parts = [candidate.mesh_text, candidate.strategy]
    parts += [f"remat {candidate.remat}"] if candidate.remat else []
    return " ".join(parts)


def _time_range(step: StepTime) -> str:
    """Return the bounds of a step; the unit only once if both have the same."""
    lower, upper = seconds_text(step.lower), seconds_text(step.upper)
    if lower == upper:
        return lower
    number, unit = lower.split()
    return f"{number}-{upper}" if upper.endswith(f" {unit}") else f"{lower}-{upper}"


def _mfu_text(step: StepTime) -> str:
    return f"{100 * step.utilization(step.expected):.0f} %"


def _efficiency_lines(advice: Advice) -> Iterator[str]:
    compute, network = (advice.choices[f"{name}_efficiency"] for name in ("compute", "network"))
    for name, efficiency in (("compute", compute), ("network", network)):
        if advice.formulas and efficiency != "calibrated":
            yield f"efficiency: {efficiency} of the {name} peak, as requested"
