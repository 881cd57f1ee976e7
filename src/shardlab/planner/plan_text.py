"""A plan as text, in colour, as Markdown and as HTML: whether it fits, then what takes the room.

What one device holds of each kind, and in all: the first table of a plan.

The rules of a plan as a table, with how many tensors each has taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_text
from shardlab._text.units import bytes_text, count_text, share_text
from shardlab.findings.report import most_severe_first
from shardlab.findings.report_text import finding_html, finding_lines, finding_markdown, no_excerpt
from shardlab.planner.plan import KINDS, DeviceBytes, Kind, Plan
from shardlab.planner.rules.rule_line import RuleLine
from shardlab.planner.tensor_table import tensors_section
from shardlab.render.markdown import escape_markdown, sections_markdown
from shardlab.render.sheet import (
    STYLE,
    Column,
    Row,
    Section,
    Sheet,
    Table,
    scrollable_html,
    section_html,
    sheet_lines,
)
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, lines_rich, lines_text
from shardlab.tracing.trace_text import bar_text

if TYPE_CHECKING:
    from rich.text import Text


_MOST = 3  # dtypes that are named in a cell


def totals_section(plan: Plan) -> Section:
    """Return what one device holds of each kind, with a bar, and what all devices hold."""
    room = plan.room
    whole = room.hbm_bytes if room else plan.bytes_per_device
    columns = (
        Column(head=""),
        Column(head="dtype", drop=3),
        Column(head="per device", is_number=True),
        Column(
            head=f"of {bytes_text(room.hbm_bytes)}" if room else "share", is_number=True, drop=2
        ),
        Column(head="", drop=1),
        Column(head="on all devices", is_number=True, drop=4),
        Column(head="in one copy", is_number=True, drop=5),
    )
    rows = []
    for kind in KINDS:
        n_bytes = plan.bytes_of(kind)
        if n_bytes:
            once = plan.once_bytes_of(kind)
            amounts = (n_bytes, n_bytes * plan.n_devices, once)
            rows.append(_total_row(kind_text(kind), dtypes_text(plan, kind), amounts, whole))
            rows += _parts(plan, kind, whole) if kind == "optimizer" else ()
    has_once = all(plan.once_bytes_of(kind) for kind in KINDS if plan.bytes_of(kind))
    once = sum(map(plan.once_bytes_of, KINDS)) if has_once else 0
    n_bytes = plan.bytes_per_device
    rows.append(_total_row("in all", "", (n_bytes, n_bytes * plan.n_devices, once), whole))
    return Section("Each device holds", Table(columns, tuple(rows)), _uneven(plan))


def _parts(plan: Plan, kind: Kind, whole: int) -> Iterator[Row]:
    """Yield the arrays of a kind by name: which moments there are, in what, and how large."""
    arrays: dict[str, list[DeviceBytes]] = {}
    for held in held_of(plan, kind):
        arrays.setdefault(held.name, []).append(held)
    for name, found in arrays.items():
        n_bytes = sum(held.bytes_per_device for held in found)
        once = sum(held.array_bytes for held in found)
        amounts = n_bytes, n_bytes * plan.n_devices, once
        yield replace(_total_row(f"· {name}", _dtypes(found), amounts, whole), is_faint=True)


def held_of(plan: Plan, kind: Kind) -> Iterator[DeviceBytes]:
    """Yield the arrays of a kind, row by row."""
    return (held for row in plan.rows for held in row.held if held.kind == kind)


def dtypes_text(plan: Plan, kind: Kind) -> str:
    """Return the dtypes of a kind, that of most bytes first."""
    if kind == "kv_cache":
        return plan.choice_text("cache_dtype")
    return _dtypes(held_of(plan, kind))


def _dtypes(arrays: Iterable[DeviceBytes]) -> str:
    sizes: Counter[str] = Counter()
    for held in arrays:
        sizes[held.dtype] += held.array_bytes
    names = [name for name, _ in sizes.most_common()]
    more = f", {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _total_row(name: str, dtypes: str, amounts: tuple[int, int, int], whole: int) -> Row:
    each, everywhere, once = amounts
    return Row(
        cells=(
            name,
            dtypes,
            bytes_text(each),
            share_text(each, whole),
            bar_text(min(each, whole), whole) + ("▶" if each > whole else ""),
            bytes_text(everywhere),
            bytes_text(once) if once else "-",
        )
    )


def _uneven(plan: Plan) -> tuple[str, ...]:
    least = sum(map(plan.least_bytes_of, KINDS))
    if bytes_text(least) == bytes_text(plan.bytes_per_device):
        return ()
    return (
        f"the last device would use {bytes_text(least)} of it: array axes that do not divide "
        "are counted as padded",
    )


def kind_text(kind: str) -> str:
    """Return a kind in words: `kv_cache` is "KV cache"."""
    return "KV cache" if kind == "kv_cache" else kind


_MOST_plan_rules = 200  # rules that are listed: specs by path may be as many as tensors
_MISFIT = ", which does not fit"


def rules_section(plan: Plan) -> Section:
    """Return the rules that a strategy stands for, or those given with what each has taken."""
    if plan.rules and all(row.rule.startswith("strategy ") for row in plan.rows):
        columns: tuple[Column, ...] = (_column("pattern"), _column("spec"))
        rows = [
            Row(cells=(printable_text(rule.pattern), printable_text(rule.spec_text)))
            for rule in plan.rules
        ]
        title = "Rules that the strategy stands for; the first that is found in a path counts"
    else:
        columns = (_column("for"), _column("spec"), Column(head="tensors", is_number=True))
        rows = list(_given(plan))
        title = "Rules in the order in which they count, and the tensors that each took"
    more = (f"and {len(rows) - _MOST_plan_rules:,} more; --rules-to writes them all",)
    return Section(
        title, Table(columns, tuple(rows[:_MOST_plan_rules])), more * (len(rows) > _MOST_plan_rules)
    )


def _column(head: str) -> Column:
    return Column(head=head, may_cut=head != "spec", is_code=True)


def _given(plan: Plan) -> Iterator[Row]:
    """Yield each rule, then what took the tensors that no single rule did."""
    taken: Counter[tuple[str, str]] = Counter()
    for row in plan.rows:
        taken[row.rule.removesuffix(_MISFIT), str(row.parameter.spec)] += row.n_tensors
    by_words: Counter[str] = Counter()
    for (words, _), n in taken.items():
        by_words[words] += n
    own = set()
    number = 0
    for line in plan.rules:
        number += line.kind == "pattern"
        words = _words(line, number)
        own.add(words)
        n_taken = "" if line.kind == "logical" else f"{by_words[words]:,}"
        name = line.pattern if line.kind == "pattern" else f"{line.kind} {line.pattern}"
        cells = tuple(map(printable_text, (name, line.spec_text, n_taken)))
        yield Row(cells=cells, beneath=(printable_text(line.reason),) if line.reason else ())
    for (words, spec), n in taken.items():
        if words not in own:
            yield Row(cells=(printable_text(words), printable_text(spec), f"{n:,}"))


def _words(line: RuleLine, number: int) -> str:
    """Return a rule as a row of the plan calls it."""
    of = f"rule {number}:" if line.kind == "pattern" else "spec for"
    return f"{of} {line.pattern}"


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
        yield [Span(text=line, is_strong=True, ink=ink)]
    first = first_sections(plan, show_all=show_all)
    yield from sheet_lines(Sheet("", _facts(plan), first), width)
    for found in most_severe_first(plan.findings):
        yield []
        yield from finding_lines(found, width, no_excerpt)
    for section in last_sections(plan, show_rules=show_rules):
        yield []
        yield from sheet_lines(Sheet("", (), (section,)), width)


def plan_markdown(plan: Plan, *, show_all: bool = False, show_rules: bool = False) -> str:
    """Return a plan for a design document: GitHub's tables, nothing that needs colour."""
    parts = [f"**{escape_markdown(_summary(plan))}**", *map(escape_markdown, _facts(plan))]
    parts += sections_markdown(first_sections(plan, show_all=show_all))
    if plan.findings:
        parts.append("### Findings")
        parts.append("\n".join(map(finding_markdown, most_severe_first(plan.findings))))
    parts += sections_markdown(last_sections(plan, show_rules=show_rules))
    return "\n\n".join(parts) + "\n"


def plan_html(
    plan: Plan, *, show_all: bool = False, show_rules: bool = True, old: Plan | None = None
) -> str:
    """Return a plan as an HTML fragment with its pictures, beside those of an older plan."""
    from shardlab.planner.memory_bars import bars_svg
    from shardlab.planner.treemap import treemap_svg

    pictures = [scrollable_html(bars_svg(plan, old), "what a device holds against its memory")]
    if plan.bytes_per_device:
        pictures.append(scrollable_html(treemap_svg(plan), "what takes the bytes of a device"))
    parts = [STYLE, '<div class="shardlab">', f"<h4>{escape(_summary(plan))}</h4>"]
    parts += [f"<p>{escape(fact)}</p>" for fact in _facts(plan)]
    parts += pictures
    parts += map(section_html, first_sections(plan, show_all=show_all))
    parts += [finding_html(found, no_excerpt) for found in most_severe_first(plan.findings)]
    parts += map(section_html, last_sections(plan, show_rules=show_rules))
    return "\n".join([*parts, "</div>"])


def headline(plan: Plan) -> str:
    """Return the one sentence that matters: does it fit, and with how much to spare."""
    held = bytes_text(plan.bytes_per_device)
    if plan.room is None:
        return f"{held} on each of {count_text(plan.n_devices, 'device')}"
    room, usable = plan.room, plan.room.usable_bytes
    spare = usable - plan.bytes_per_device
    where = f"{held} of {bytes_text(room.hbm_bytes)} on each of {plan.n_devices:,} {room.hardware}"
    share = f"{room.headroom:.0%}".replace("%", " %")
    if spare >= 0:
        beside = f" beside {share} headroom" if room.headroom else ""
        return printable_text(f"fits{_without(plan)}: {where}, {bytes_text(spare)} free{beside}")
    beside = f" with {share} headroom" if room.headroom else ""
    return printable_text(f"does not fit: {where}, {bytes_text(-spare)} too much{beside}")


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
    return (printable_text("; ".join(said)), *_left_out(plan))


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
            cells=(
                printable_text(item.name),
                kind_text(item.kind),
                bytes_text(item.bytes_per_device),
                share_text(item.bytes_per_device, whole),
            )
        )
        for item in items
        if show_all or item.bytes_per_device * 1000 >= whole
    )
    columns = (
        Column(head="", may_cut=True),
        Column(head="", drop=2),
        Column(head="per device", is_number=True),
    )
    table = Table((*columns, Column(head="share", is_number=True, drop=1)), rows)
    return (Section("Beside the tensors, by formula", table),) if rows else ()


def last_sections(plan: Plan, *, show_rules: bool = False) -> tuple[Section, ...]:
    """Return the rules, where they are asked for, what was assumed, and notes."""
    sections = []
    if show_rules:
        sections.append(rules_section(plan))
    sections.append(Section("Assumed", None, _assumptions(plan)))
    if plan.notes:
        sections.append(Section("Notes", None, tuple(map(printable_text, plan.notes))))
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
    return tuple(map(printable_text, said))
