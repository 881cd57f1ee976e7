"""A plan as text, in color, as Markdown and as HTML: does it fit, and what takes the memory.

The order is the same everywhere: headline, memory per device, tensors, memory by formula, findings,
rules, assumptions, notes.
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

_MAX_DTYPES = 3  # named in a cell
_MAX_RULES = 200  # listed: specs by path may be as many as tensors
_MAX_ITEM_RATIO = 1000  # a device's bytes / an item's: smaller items are listed by `--all` only
_MIN_WIDTH = 40  # of a terminal


def plan_text(
    plan: Plan, width: int = DEFAULT_WIDTH, *, show_all: bool = False, show_rules: bool = False
) -> str:
    """Return a plan as plain text."""
    return lines_text(plan_lines(plan, width, show_all=show_all, show_rules=show_rules))


def plan_rich(
    plan: Plan, width: int = DEFAULT_WIDTH, *, show_all: bool = False, show_rules: bool = False
) -> Text:
    """Return a plan for rich to print in color."""
    return lines_rich(plan_lines(plan, width, show_all=show_all, show_rules=show_rules))


def plan_lines(
    plan: Plan, width: int, *, show_all: bool = False, show_rules: bool = False
) -> Iterator[Line]:
    """Yield the lines of a plan for a terminal."""
    width = max(width, _MIN_WIDTH)
    ink = _headline_ink(plan)
    for line in wrap(_headline_with_counts(plan), width):
        yield [Span(text=line, is_strong=True, ink=ink)]
    sections = sections_before_findings(plan, show_all=show_all)
    yield from sheet_lines(Sheet("", _plan_facts(plan), sections), width)
    for finding in most_severe_first(plan.findings):
        yield []
        yield from finding_lines(finding, width, no_excerpt)
    for section in sections_after_findings(plan, show_rules=show_rules):
        yield []
        yield from sheet_lines(Sheet("", (), (section,)), width)


def plan_markdown(plan: Plan, *, show_all: bool = False, show_rules: bool = False) -> str:
    """Return a plan for a design document: GitHub's tables, nothing that needs color."""
    parts = [f"**{escape_markdown(_headline_with_counts(plan))}**"]
    parts += map(escape_markdown, _plan_facts(plan))
    parts += sections_markdown(sections_before_findings(plan, show_all=show_all))
    if plan.findings:
        parts.append("### Findings")
        parts.append("\n".join(map(finding_markdown, most_severe_first(plan.findings))))
    parts += sections_markdown(sections_after_findings(plan, show_rules=show_rules))
    return "\n\n".join(parts) + "\n"


def plan_html(
    plan: Plan, *, show_all: bool = False, show_rules: bool = True, old: Plan | None = None
) -> str:
    """Return a plan as an HTML fragment with its pictures, next to those of an older plan."""
    # Both modules import this one.
    from shardlab.planner.memory_bars import bars_svg
    from shardlab.planner.treemap import treemap_svg

    pictures = [scrollable_html(bars_svg(plan, old), "memory of a device against its capacity")]
    if plan.bytes_per_device:
        pictures.append(scrollable_html(treemap_svg(plan), "memory of a device by tensor"))
    parts = [STYLE, '<div class="shardlab">', f"<h4>{escape(_headline_with_counts(plan))}</h4>"]
    parts += [f"<p>{escape(fact)}</p>" for fact in _plan_facts(plan)]
    parts += pictures
    parts += map(section_html, sections_before_findings(plan, show_all=show_all))
    parts += [finding_html(finding, no_excerpt) for finding in most_severe_first(plan.findings)]
    parts += map(section_html, sections_after_findings(plan, show_rules=show_rules))
    return "\n".join([*parts, "</div>"])


def plan_headline(plan: Plan) -> str:
    """Return the one sentence that matters: does it fit, and with how much free memory.

    A plan that JAX rejects says so and why, before any figure: its memory is not the problem.
    """
    used = bytes_text(plan.bytes_per_device)
    rejection = _rejection_text(plan)
    if (budget := plan.budget) is None:
        verdict = f"JAX rejects it{rejection}; " if rejection is not None else ""
        usage = f"{verdict}{used} on each of {count_text(plan.n_devices, 'device')}"
        return printable_text(usage)
    free = budget.usable_bytes - plan.bytes_per_device
    capacity = bytes_text(budget.hbm_bytes)
    usage = f"{used} of {capacity} on each of {plan.n_devices:,} {budget.hardware}"
    percent = f"{budget.headroom:.0%}".replace("%", " %")
    headroom = f" after {percent} headroom" if budget.headroom else ""
    if free >= 0 and rejection is not None:
        return printable_text(f"fits in memory, but JAX rejects it{rejection}; {usage}")
    if free >= 0:
        fits = f"fits{_uncounted_text(plan)}"
        return printable_text(f"{fits}: {usage}, {bytes_text(free)} free{headroom}")
    # Names come from files: they must not send escape codes to a terminal.
    also = f"; JAX rejects it too{rejection}" if rejection is not None else ""
    return printable_text(f"does not fit: {usage}, {bytes_text(-free)} too much{headroom}{also}")


def _rejection_text(plan: Plan) -> str | None:
    """Return why JAX rejects a plan, after a colon: "" if only a finding has it; else None."""
    errors = [
        finding
        for finding in plan.findings
        if finding.severity == "error" and finding.code != "plan.does_not_fit"
    ]
    if not errors:
        return None
    for finding in errors:
        if finding.code == "plan.indivisible":
            details = finding.details
            paths = details.get("paths", ())
            size = f"{details['size']:,}"
            subject = f"size {size} of '{paths[0]}'" if paths else f"{details['subject']} {size}"
            return f": {subject} is not divisible by {details['parts']:,}"
    return ""


def _headline_with_counts(plan: Plan) -> str:
    """Return the headline, and how many other findings follow below."""
    counts = Counter(
        finding.severity for finding in plan.findings if finding.code != "plan.does_not_fit"
    )
    texts = [count_text(counts[name], name) for name in ("error", "warning") if counts[name]]
    return plan_headline(plan) + (f"; {' and '.join(texts)} below" if texts else "")


def _headline_ink(plan: Plan) -> str:
    # `fits` is None without hardware, which is not a failure.
    if plan.fits is False or not plan.ok:
        return "red"
    if any(finding.severity == "warning" for finding in plan.findings):
        return "yellow"
    return "green" if plan.fits else ""


def _plan_facts(plan: Plan) -> tuple[str, ...]:
    n_tensors = sum(row.n_tensors for row in plan.rows)
    facts = [
        f"{plan.model}: {plan.n_parameters:,} parameters in {count_text(n_tensors, 'tensor')}",
        f"mesh {plan.mesh_summary}",
    ]
    if strategy := plan.choices.get("strategy"):
        facts.append(f"strategy {strategy}")
    optimizer = plan.choices.get("optimizer", "none")
    facts.append(f"training with {optimizer}" if _is_training(plan) else "inference")
    return (printable_text("; ".join(facts)), *_missing_workload(plan))


def _is_training(plan: Plan) -> bool:
    return plan.choices.get("optimizer", "none") != "none"


def _uncounted_text(plan: Plan) -> str:
    """Return what a plan that fits should count and cannot, in parentheses."""
    if plan.choices.get("architecture") != "unknown":
        return ""
    return f" ({'activations' if _is_training(plan) else 'KV cache'} not counted)"


def _missing_workload(plan: Plan) -> Iterator[str]:
    if not plan.choices.get("batch"):
        missing = "activations are" if _is_training(plan) else "the KV cache is"
        yield f"{missing} not counted: no batch and sequence were given"


def sections_before_findings(plan: Plan, *, show_all: bool = False) -> tuple[Section, ...]:
    """Return memory by kind, tensors, and memory by formula."""
    tensors = tensors_section(plan, show_all=show_all)
    return (memory_section(plan), tensors, *items_section(plan, show_all=show_all))


def memory_section(plan: Plan) -> Section:
    """Return the memory of one device by kind, with a bar, and the memory of all devices."""
    budget = plan.budget
    # Without hardware shares are of the total.
    capacity = budget.hbm_bytes if budget else plan.bytes_per_device
    columns = (
        Column(head=""),
        Column(head="dtype", drop=3),
        Column(head="per device", is_number=True),
        Column(head=f"of {bytes_text(capacity)}" if budget else "share", is_number=True, drop=2),
        Column(head="", drop=1, is_bar=True),
        Column(head="all devices", is_number=True, drop=4),
        Column(head="unreplicated", is_number=True, drop=5),
    )
    rows = []
    # Kinds without bytes (gradients in inference) are not listed.
    for kind in KINDS:
        n_bytes = plan.bytes_of(kind)
        if n_bytes:
            amounts = (n_bytes, n_bytes * plan.n_devices, plan.unreplicated_bytes_of(kind))
            rows.append(_memory_row(kind_text(kind), dtypes_text(plan, kind), amounts, capacity))
            rows += _state_rows(plan, capacity) if kind == "optimizer" else ()
    # Activations have no unreplicated size, and then the total has none either.
    is_all_tensors = all(plan.unreplicated_bytes_of(kind) for kind in KINDS if plan.bytes_of(kind))
    unreplicated = sum(map(plan.unreplicated_bytes_of, KINDS)) if is_all_tensors else 0
    n_bytes = plan.bytes_per_device
    rows.append(
        _memory_row("total", "", (n_bytes, n_bytes * plan.n_devices, unreplicated), capacity)
    )
    return Section("Memory per device", Table(columns, tuple(rows)), _imbalance_lines(plan))


def _state_rows(plan: Plan, capacity: int) -> Iterator[Row]:
    """Yield the optimizer states by name: which there are, their dtypes and sizes."""
    states: dict[str, list[DeviceBytes]] = {}
    for array in plan.arrays_of("optimizer"):
        states.setdefault(array.name, []).append(array)
    for name, arrays in states.items():
        n_bytes = sum(array.bytes_per_device for array in arrays)
        unreplicated = sum(array.array_bytes for array in arrays)
        amounts = n_bytes, n_bytes * plan.n_devices, unreplicated
        row = _memory_row(f"· {name}", _dtypes_by_size(arrays), amounts, capacity)
        yield replace(row, is_faint=True)


def dtypes_text(plan: Plan, kind: Kind) -> str:
    """Return the dtypes of a kind, the one with most bytes first."""
    if kind == "kv_cache":
        return plan.choice_text("cache_dtype")
    return _dtypes_by_size(plan.arrays_of(kind))


def _dtypes_by_size(arrays: Iterable[DeviceBytes]) -> str:
    sizes: Counter[str] = Counter()
    for array in arrays:
        sizes[array.dtype] += array.array_bytes
    names = [name for name, _ in sizes.most_common()]
    n_hidden = len(names) - _MAX_DTYPES
    return ", ".join(names[:_MAX_DTYPES]) + (f", {n_hidden} more" if n_hidden > 0 else "")


def _memory_row(name: str, dtypes: str, amounts: tuple[int, int, int], capacity: int) -> Row:
    per_device, all_devices, unreplicated = amounts
    overflow_mark = "▶" if per_device > capacity else ""
    return Row(
        cells=(
            name,
            dtypes,
            bytes_text(per_device),
            share_text(per_device, capacity),
            bar_text(min(per_device, capacity), capacity) + overflow_mark,
            bytes_text(all_devices),
            bytes_text(unreplicated) if unreplicated else "-",
        )
    )


def _imbalance_lines(plan: Plan) -> tuple[str, ...]:
    least = sum(map(plan.least_bytes_of, KINDS))
    if bytes_text(least) == bytes_text(plan.bytes_per_device):
        return ()
    return (
        f"the last device uses {bytes_text(least)} of it: dimensions that are not divisible count "
        "as padded",
    )


def kind_text(kind: str) -> str:
    """Return the name of a kind for readers: `kv_cache` is "KV cache"."""
    return "KV cache" if kind == "kv_cache" else kind


def items_section(plan: Plan, *, show_all: bool = False) -> tuple[Section, ...]:
    """Return what is counted by formula, without what is too small to matter."""
    total = plan.bytes_per_device
    items = sorted(plan.items, key=lambda item: (-item.bytes_per_device, item.name))
    rows = tuple(
        Row(
            cells=(
                printable_text(item.name),
                kind_text(item.kind),
                bytes_text(item.bytes_per_device),
                share_text(item.bytes_per_device, total),
            )
        )
        for item in items
        if show_all or item.bytes_per_device * _MAX_ITEM_RATIO >= total
    )
    columns = (
        Column(head="", can_truncate=True),
        Column(head="", drop=2),
        Column(head="per device", is_number=True),
        Column(head="share", is_number=True, drop=1),
    )
    return (Section("Other memory, by formula", Table(columns, rows)),) if rows else ()


def sections_after_findings(plan: Plan, *, show_rules: bool = False) -> tuple[Section, ...]:
    """Return the rules, if requested, the assumptions, and notes."""
    sections = []
    if show_rules:
        sections.append(rules_section(plan))
    sections.append(Section("Assumptions", None, _assumption_lines(plan)))
    if plan.notes:
        sections.append(Section("Notes", None, tuple(map(printable_text, plan.notes))))
    return tuple(sections)


def rules_section(plan: Plan) -> Section:
    """Return rules that reproduce the specs, or the user's rules with what each matched."""
    if plan.has_derived_rules:
        columns: tuple[Column, ...] = (_rule_column("pattern"), _rule_column("spec"))
        rows = [
            Row(cells=(printable_text(line.pattern), printable_text(line.spec_text)))
            for line in plan.rules
        ]
        title = "Equivalent rules; the first that matches a path wins"
    else:
        tensors = Column(head="tensors", is_number=True)
        columns = (_rule_column("for"), _rule_column("spec"), tensors)
        rows = list(_user_rule_rows(plan))
        title = "Rules, the first that matches wins, and how many tensors each matched"
    n_hidden = len(rows) - _MAX_RULES
    hidden_note = (f"and {n_hidden:,} more; --rules-to writes them all",) if n_hidden > 0 else ()
    return Section(title, Table(columns, tuple(rows[:_MAX_RULES])), hidden_note)


def _rule_column(head: str) -> Column:
    return Column(head=head, can_truncate=head != "spec", is_code=True)


def _user_rule_rows(plan: Plan) -> Iterator[Row]:
    """Yield each rule, then what gave specs to the tensors that no single rule matched."""
    n_matched: Counter[int] = Counter()
    other_sources: Counter[tuple[str, str]] = Counter()
    for row in plan.rows:
        if row.rule_index is not None:
            n_matched[row.rule_index] += row.n_tensors
        else:
            other_sources[row.rule, str(row.parameter.spec)] += row.n_tensors
    for index, line in enumerate(plan.rules):
        count = "" if line.kind == "logical" else f"{n_matched[index]:,}"
        name = line.pattern if line.kind == "pattern" else f"{line.kind} {line.pattern}"
        cells = tuple(map(printable_text, (name, line.spec_text, count)))
        yield Row(cells=cells, notes=(printable_text(line.reason),) if line.reason else ())
    for (source, spec), n_tensors in other_sources.items():
        yield Row(cells=(printable_text(source), printable_text(spec), f"{n_tensors:,}"))


def _assumption_lines(plan: Plan) -> tuple[str, ...]:
    options = ((name.replace("_", " "), plan.choice_text(name)) for name in plan.choices)
    lines = ["; ".join(f"{name} {text}" for name, text in options if text)]
    lines += [f"{item.name}: {item.formula}" for item in plan.items if item.formula]
    if (budget := plan.budget) is not None:
        source = f" ({budget.source})" if budget.source else ""
        lines.append(f"memory of one {budget.hardware}: {budget.hbm_bytes:,} bytes{source}")
    if plan.source:
        lines.append(f"shapes: {plan.source}")
    lines.append("1 GB is 10^9 bytes; wasted: bytes of a device beyond its share of one replica")
    return tuple(map(printable_text, lines))
