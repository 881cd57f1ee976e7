"""A plan as text, in colour, as Markdown and as HTML: whether it fits, then what takes the room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab.layouts.amount import memory_text
from shardlab.records.plan import Plan
from shardlab.records.report import gravest_first
from shardlab.render.finding_markdown import finding_markdown
from shardlab.render.markdown import escaped, sections_markdown
from shardlab.render.plain import plain
from shardlab.render.plan_rules import rules_section
from shardlab.render.plan_tensors import tensors_section
from shardlab.render.plan_totals import kind_text, totals_section
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
    wide_html,
)
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text
from shardlab.render.units import count_text, share_text

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
    ink = _ink(plan)
    for line in wrap(_summary(plan), width):
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
    parts = [f"**{escaped(_summary(plan))}**", *map(escaped, _facts(plan))]
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

    pictures = [wide_html(bars_svg(plan, old), "what a device holds against its memory")]
    if plan.bytes_per_device:
        pictures.append(wide_html(treemap_svg(plan), "what takes the bytes of a device"))
    parts = [STYLE, '<div class="shardlab">', f"<h4>{escape(_summary(plan))}</h4>"]
    parts += [f"<p>{escape(fact)}</p>" for fact in _facts(plan)]
    parts += pictures
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
        return plain(f"fits{_without(plan)}: {where}, {memory_text(spare)} free{beside}")
    beside = f" with {share} headroom" if room.headroom else ""
    return plain(f"does not fit: {where}, {memory_text(-spare)} too much{beside}")


def _summary(plan: Plan) -> str:
    """Return the headline, and how many findings stand below that it does not tell of."""
    counts = Counter(f.severity for f in plan.findings if f.code != "plan.does_not_fit")
    said = [count_text(counts[name], name) for name in ("error", "warning") if counts[name]]
    return headline(plan) + (f"; {' and '.join(said)} below" if said else "")


def _ink(plan: Plan) -> str:
    if plan.fits is False or not plan.ok:
        return "red"
    if any(found.severity == "warning" for found in plan.findings):
        return "yellow"
    return "green" if plan.fits else ""


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


def _without(plan: Plan) -> str:
    """Return what a plan that fits was asked to count and could not, in brackets."""
    if plan.choices.get("measures") != "unknown":
        return ""
    is_training = plan.choices.get("optimizer", "none") != "none"
    return f" ({'activations' if is_training else 'KV cache'} not counted)"


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
        sections.append(rules_section(plan))
    sections.append(Section("Assumed", None, _assumptions(plan)))
    if plan.notes:
        sections.append(Section("Notes", None, tuple(map(plain, plan.notes))))
    return tuple(sections)


def _assumptions(plan: Plan) -> tuple[str, ...]:
    choices = ((name.replace("_", " "), plan.choice_text(name)) for name in plan.choices)
    said = ["; ".join(f"{name} {text}" for name, text in choices if text)]
    said += [f"{item.name}: {item.formula}" for item in plan.items if item.formula]
    if plan.room is not None:
        source = f" ({plan.room.source})" if plan.room.source else ""
        said.append(f"memory of one {plan.room.hardware}: {plan.room.hbm_bytes:,} bytes{source}")
    if plan.source:
        said.append(f"shapes: {plan.source}")
    said.append("1 GB is 10^9 bytes; wasted is what a device holds beyond its share of one copy")
    return tuple(map(plain, said))
