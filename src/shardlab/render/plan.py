"""A plan as text, in colour, as Markdown and as HTML: whether it fits, then what takes the room."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab.layouts.amount import memory_text
from shardlab.records.plan import KINDS, Held, Plan, PlanRow
from shardlab.records.report import gravest_first
from shardlab.render.layers import Group, groups_of, name_in
from shardlab.render.markdown import finding_markdown, sections_markdown
from shardlab.render.plain import plain
from shardlab.render.report import finding_html, finding_lines, no_excerpt
from shardlab.render.sheet import (
    STYLE,
    Column,
    Row,
    Section,
    Sheet,
    Table,
    section_html,
    sheet_lines,
)
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text
from shardlab.render.trace import bar_text
from shardlab.render.words import count_text, share_text

if TYPE_CHECKING:
    from rich.text import Text


def plan_text(
    plan: Plan, width: int = DEFAULT_WIDTH, *, show_all: bool = False, show_rules: bool = False
) -> str:
    """Return a plan as plain text."""
    return lines_text(plan_lines(plan, width, show_all=show_all, show_rules=show_rules))


def plan_rich(
    plan: Plan, width: int = DEFAULT_WIDTH, *, show_all: bool = False, show_rules: bool = False
) -> Text:
    """Return a plan for rich to print in colour."""
    return lines_rich(plan_lines(plan, width, show_all=show_all, show_rules=show_rules))


def plan_lines(
    plan: Plan, width: int, *, show_all: bool = False, show_rules: bool = False
) -> Iterator[Line]:
    """Yield the headline, the totals, the tensors, the findings, and what was assumed."""
    width = max(width, 40)
    ink = {True: "green", False: "red", None: ""}[plan.fits]
    for line in wrap(headline(plan), width):
        yield [Span(line, is_strong=True, ink=ink)]
    first = first_sections(plan, show_all=show_all)
    yield from sheet_lines(Sheet("", _facts(plan), first), width)
    for found in gravest_first(plan.findings):
        yield []
        yield from finding_lines(found, width, no_excerpt)
    for section in last_sections(plan, show_rules=show_rules):
        yield []
        yield from sheet_lines(Sheet("", (), (section,)), width)


def plan_markdown(plan: Plan, *, show_all: bool = False, show_rules: bool = False) -> str:
    """Return a plan for a design document: GitHub's tables, nothing that needs colour."""
    parts = [f"**{headline(plan)}**", *_facts(plan)]
    parts += sections_markdown(first_sections(plan, show_all=show_all))
    if plan.findings:
        parts.append("### Findings")
        parts.append("\n".join(map(finding_markdown, gravest_first(plan.findings))))
    parts += sections_markdown(last_sections(plan, show_rules=show_rules))
    return "\n\n".join(parts) + "\n"


def plan_html(
    plan: Plan, *, show_all: bool = False, show_rules: bool = True, old: Plan | None = None
) -> str:
    """Return a plan as an HTML fragment with its pictures, beside those of an older plan."""
    from shardlab.render.bars import bars_svg
    from shardlab.render.treemap import treemap_svg

    pictures = [bars_svg(plan, old), *([treemap_svg(plan)] if plan.bytes_per_device else [])]
    parts = [STYLE, '<div class="shardlab">', f"<h4>{escape(headline(plan))}</h4>"]
    parts += [f"<p>{escape(fact)}</p>" for fact in _facts(plan)]
    parts += [f'<div class="wide">{picture}</div>' for picture in pictures]
    parts += map(section_html, first_sections(plan, show_all=show_all))
    parts += [finding_html(found, no_excerpt) for found in gravest_first(plan.findings)]
    parts += map(section_html, last_sections(plan, show_rules=show_rules))
    return "\n".join([*parts, "</div>"])


def headline(plan: Plan) -> str:
    """Return the one sentence that matters: does it fit, and with how much to spare."""
    held = memory_text(plan.bytes_per_device)
    if plan.room is None:
        return f"{held} on each of {count_text(plan.n_devices, 'device')}"
    room, usable = plan.room, plan.room.usable_bytes
    spare = usable - plan.bytes_per_device
    where = f"{held} of {memory_text(room.hbm_bytes)} on each of {plan.n_devices:,} {room.hardware}"
    share = f"{room.headroom:.0%}".replace("%", " %")
    if spare >= 0:
        beside = f" beside {share} headroom" if room.headroom else ""
        return plain(f"fits: {where}, {memory_text(spare)} free{beside}")
    beside = f" with {share} headroom" if room.headroom else ""
    return plain(f"does not fit: {where}, {memory_text(-spare)} too much{beside}")


def _facts(plan: Plan) -> tuple[str, ...]:
    n_tensors = sum(row.n_tensors for row in plan.rows)
    said = [
        f"{plan.model}: {plan.n_parameters:,} parameters in {count_text(n_tensors, 'tensor')}",
        f"mesh {plan.mesh_words}",
        *(f"{name} {plan.choices[name]}" for name in ("strategy",) if plan.choices.get(name)),
    ]
    optimizer = plan.choices.get("optimizer", "none")
    said.append("inference" if optimizer == "none" else f"training with {optimizer}")
    return (plain("; ".join(said)), *_left_out(plan))


def _left_out(plan: Plan) -> Iterator[str]:
    """Yield what a plan that fits may still lack."""
    is_training = plan.choices.get("optimizer", "none") != "none"
    if not plan.choices.get("batch"):
        missing = "activations are" if is_training else "the KV cache is"
        yield f"{missing} not counted: no batch and sequence were given"


def first_sections(plan: Plan, *, show_all: bool = False) -> tuple[Section, ...]:
    """Return what stands before the findings: totals, tensors, what is counted by formula."""
    tensors = tensors_section(plan, show_all=show_all)
    return (totals_section(plan), tensors, *items_section(plan, show_all=show_all))


def totals_section(plan: Plan) -> Section:
    """Return what one device holds of each kind, with a bar, and what all devices hold."""
    room = plan.room
    whole = room.hbm_bytes if room else plan.bytes_per_device
    columns = (
        Column(""),
        Column("per device", True),
        Column(f"of {memory_text(room.hbm_bytes)}" if room else "share", True, drop=2),
        Column("", drop=1),
        Column("on all devices", True, drop=3),
        Column("in one copy", True, drop=4),
    )
    rows = []
    for kind in KINDS:
        n_bytes = plan.bytes_of(kind)
        if n_bytes:
            once = plan.once_bytes_of(kind)
            amounts = (n_bytes, n_bytes * plan.n_devices, once)
            rows.append(_total_row(kind_text(kind), amounts, whole))
    has_once = all(plan.once_bytes_of(kind) for kind in KINDS if plan.bytes_of(kind))
    once = sum(map(plan.once_bytes_of, KINDS)) if has_once else 0
    n_bytes = plan.bytes_per_device
    rows.append(_total_row("in all", (n_bytes, n_bytes * plan.n_devices, once), whole))
    return Section("Each device holds", Table(columns, tuple(rows)), _uneven(plan))


def _total_row(name: str, amounts: tuple[int, int, int], whole: int) -> Row:
    each, everywhere, once = amounts
    return Row(
        (
            name,
            memory_text(each),
            share_text(each, whole),
            bar_text(min(each, whole), whole) + ("▶" if each > whole else ""),
            memory_text(everywhere),
            memory_text(once) if once else "-",
        )
    )


def _uneven(plan: Plan) -> tuple[str, ...]:
    least = sum(map(plan.least_bytes_of, KINDS))
    if memory_text(least) == memory_text(plan.bytes_per_device):
        return ()
    return (
        f"the last device would use {memory_text(least)} of it: array axes that do not divide "
        "are counted as padded",
    )


def kind_text(kind: str) -> str:
    """Return a kind in words: `kv_cache` is "KV cache"."""
    return "KV cache" if kind == "kv_cache" else kind


def tensors_section(plan: Plan, *, show_all: bool = False) -> Section:
    """Return the table of tensors by layer."""
    is_training = any(len(row.held) > 1 for row in plan.rows)
    rows: list[Row] = []
    for group in groups_of(plan, show_all=show_all):
        share = share_text(group.bytes_per_device, plan.bytes_per_device)
        title = f"{group.title}: {memory_text(group.bytes_per_device)}, {share}"
        rows.append(Row((), heading=plain(title)))
        rows += [_tensor_row(row, group, plan, is_training) for row in group.rows]
        rows += [_folded_row(group, is_training)] if group.folded else []
    columns = (
        Column("tensor", may_cut=True, keep=26),
        Column("array", may_cut=True, keep=44),
        Column("spec", drop=9),
        Column("shard", drop=3),
        *([Column("parameter", True, drop=6)] if is_training else []),
        Column("in all" if is_training else "per device", True),
        Column("copies", True, drop=1),
        Column("wasted", True),
    )
    words = "Tensors, largest first; bytes are those of one device"
    return Section(words, Table(columns, tuple(rows)))


def _tensor_row(row: PlanRow, group: Group, plan: Plan, is_training: bool) -> Row:
    held = row.parameter
    wasted = row.wasted_bytes
    cells = [
        name_in(row, group),
        plan.array_text(held),
        str(held.spec),
        f"[{','.join(map(str, held.shard_shape))}]",
        *([memory_text(row.bytes_of("parameters"))] if is_training else []),
        memory_text(row.bytes_per_device),
        f"{held.n_copies:,}",
        memory_text(wasted) if wasted else "-",
    ]
    return Row(tuple(map(plain, cells)), _beside(row, plan))


def _beside(row: PlanRow, plan: Plan) -> tuple[str, ...]:
    """Return what is kept beside a parameter, where it is cut in another way."""
    own, shape = _cut(row.parameter), row.parameter.shape
    apart = [held for held in row.held[1:] if held.shape == shape and _cut(held) != own]
    arrays: dict[str, list[str]] = {}
    for held in apart:
        arrays.setdefault(plan.array_text(held), []).append(held.name)
    return tuple(plain(f"{', '.join(names)}: {array}") for array, names in arrays.items())


def _cut(held: Held) -> tuple[tuple[str, ...], ...]:
    """Return the spec without what it does not cut at its end: P() and P(None) are one."""
    axes = held.spec.axes
    while axes and not axes[-1]:
        axes = axes[:-1]
    return axes


def _folded_row(group: Group, is_training: bool) -> Row:
    n_bytes = sum(row.bytes_per_device for row in group.folded)
    wasted = sum(row.wasted_bytes for row in group.folded)
    parameters = sum(row.bytes_of("parameters") for row in group.folded)
    cells = (
        f"{len(group.folded):,} more",
        "",
        "",
        "",
        *([memory_text(parameters)] if is_training else []),
        memory_text(n_bytes),
        "",
        memory_text(wasted) if wasted else "-",
    )
    return Row(cells, is_faint=True)


def items_section(plan: Plan, *, show_all: bool = False) -> tuple[Section, ...]:
    """Return what is counted by formula, without what is too small to matter."""
    whole = plan.bytes_per_device
    items = sorted(plan.items, key=lambda item: (-item.bytes_per_device, item.name))
    rows = tuple(
        Row(
            (
                plain(item.name),
                kind_text(item.kind),
                memory_text(item.bytes_per_device),
                share_text(item.bytes_per_device, whole),
            )
        )
        for item in items
        if show_all or item.bytes_per_device * 1000 >= whole
    )
    columns = (Column("", may_cut=True), Column("", drop=2), Column("per device", True))
    table = Table((*columns, Column("share", True, drop=1)), rows)
    return (Section("Beside the tensors, by formula", table),) if rows else ()


def last_sections(plan: Plan, *, show_rules: bool = False) -> tuple[Section, ...]:
    """Return the rules, where they are asked for, what was assumed, and notes."""
    sections = []
    if show_rules:
        sections.append(_rules_section(plan))
    sections.append(Section("Assumed", None, _assumptions(plan)))
    if plan.notes:
        sections.append(Section("Notes", None, tuple(map(plain, plan.notes))))
    return tuple(sections)


def _rules_section(plan: Plan) -> Section:
    """Return the rules that a strategy stands for, or which given rule took which tensors."""
    if plan.rules:
        rows = [Row((plain(rule.pattern), plain(str(rule.spec)))) for rule in plan.rules]
        table = Table((Column("pattern", may_cut=True), Column("spec")), tuple(rows))
        return Section("Rules, the first that is found in a path counts", table)
    taken: dict[tuple[str, str], int] = {}
    for row in plan.rows:
        key = row.rule, str(row.parameter.spec)
        taken[key] = taken.get(key, 0) + row.n_tensors
    rows = [Row((plain(rule), plain(spec), f"{n:,}")) for (rule, spec), n in taken.items()]
    columns = (Column("rule", may_cut=True), Column("spec"), Column("tensors", True))
    return Section("Rules, as they took the tensors", Table(columns, tuple(rows)))


def _assumptions(plan: Plan) -> tuple[str, ...]:
    said = [f"{'; '.join(f'{name} {value}' for name, value in plan.choices.items() if value)}"]
    said += [f"{item.name}: {item.formula}" for item in plan.items if item.formula]
    if plan.room is not None:
        source = f" ({plan.room.source})" if plan.room.source else ""
        said.append(f"memory of {plan.room.hardware}: {plan.room.hbm_bytes:,} bytes{source}")
    if plan.source:
        said.append(f"shapes: {plan.source}")
    said.append("1 GB is 10^9 bytes; wasted is what a device holds beyond its share of one copy")
    return tuple(map(plain, said))
