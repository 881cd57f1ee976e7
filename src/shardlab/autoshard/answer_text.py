"""Renders the answer of autoshard: specs to paste, reasons, collectives, and the comparison."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardlab._text.units import bytes_text, count_text, seconds_text, share_text
from shardlab.autoshard.answer import Autosharding, CollectiveUse, ShardingCost
from shardlab.autoshard.paste_text import constraint_line, rules_file_text, spec_lines
from shardlab.autoshard.proof.proof_record import Proof
from shardlab.render.sheet import Column, Row, Section, Sheet, Table, sheet_html, sheet_lines
from shardlab.render.terminal import DEFAULT_WIDTH, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text

_MAX_COLLECTIVES = 12
NOISE = 0.01  # of a step time: estimates that are closer are called equal


def answer_text(answer: Autosharding, width: int = DEFAULT_WIDTH) -> str:
    """Return the answer as plain text."""
    return lines_text(sheet_lines(_sheet(answer), width))


def answer_rich(answer: Autosharding, width: int = DEFAULT_WIDTH) -> Text:
    """Return the answer for rich to print in color."""
    return lines_rich(sheet_lines(_sheet(answer), width))


def answer_html(answer: Autosharding) -> str:
    """Return the answer as an HTML fragment."""
    return sheet_html(_sheet(answer))


def _sheet(answer: Autosharding) -> Sheet:
    cost = answer.cost
    memory = f"{bytes_text(cost.memory_bytes)} of {bytes_text(answer.memory_limit)}"
    return Sheet(
        f"{answer.program} on {answer.mesh}, {answer.hardware}",
        (
            f"Estimated step: {seconds_text(cost.seconds)}, memory of a device: {memory}.",
            f"{_proof_text(answer)} {_search_text(answer)}",
        ),
        tuple(_sections(answer)),
    )


def _proof_text(answer: Autosharding) -> str:
    proof = answer.proof
    if proof is None and answer.search.is_interrupted:
        return "Not proven: interrupted."
    if proof is None:
        return "Not proven: no proof was requested."
    if proof.verdict == "proven":
        without = " (without the constraints)" if answer.constraints else ""
        return f"Proven: collectives, values{without} and memory; see Proof."
    missing = ", ".join(name for name, part in proof.parts if part.verdict != "proven")
    return f"Not proven: {missing}; see Proof."


def _proof_lines(answer: Autosharding, proof: Proof) -> Iterator[str]:
    """Yield a line for each proof, what counts as equal in it, and what was discarded."""
    for name, part in proof.parts:
        # Sentences begin with a small letter where they continue a line of text.
        yield f"{name.capitalize()}: {part.verdict}. {part.sentence[:1].upper()}{part.sentence[1:]}"
    for rule in proof.collectives.normalisations:
        yield f"Counts as equal: {rule.rule} ({bytes_text(rule.wire_bytes)}). {rule.reason}."
    for item in answer.discarded:
        yield (
            f"Discarded: a step of {seconds_text(item.seconds)} on {item.mesh}, disproven by "
            f"{item.reason}"
        )


def _search_text(answer: Autosharding) -> str:
    search = answer.search
    count = count_text(search.n_candidates, "candidate")
    took = f"{count} in {seconds_text(search.seconds)}"
    if answer.discarded:
        n_discarded = count_text(len(answer.discarded), "better answer")
        return f"Search: {took}; {n_discarded} failed a proof."
    if search.is_exhaustive:
        return f"Exhaustive search: {took}; no other choice on this mesh is better."
    if search.is_interrupted:
        return f"Interrupted: {took}; these are the best shardings found until then."
    ending = (
        "no single change and no pair of changes is better"
        if search.is_complete
        else "the time was over before every change was tried"
    )
    return f"Local search: {took}; {ending}."


def _sections(answer: Autosharding) -> Iterator[Section]:
    yield Section("Specs, and why", _spec_table(answer))
    if answer.proof is not None:
        yield Section("Proof", None, tuple(_proof_lines(answer, answer.proof)))
    if answer.constraints:
        yield Section("Constraints to write", None, tuple(_constraint_lines(answer)))
    yield Section("Compared with", _comparison_table(answer), _comparison_notes(answer))
    if answer.collectives:
        yield Section(_communication_title(answer), _collective_table(answer))
    yield Section("To paste", None, tuple(spec_lines(answer)))
    if rules := rules_file_text(answer):
        yield Section("As rules for shardlab plan --rules", None, tuple(rules.splitlines()))
    yield Section("Assumed", None, answer.assumptions)


def _spec_table(answer: Autosharding) -> Table:
    columns = (
        Column(head="array", can_truncate=True, is_code=True),
        Column(head="shape", is_code=True, drop=1),
        Column(head="spec", is_code=True),
        Column(head="on a device", is_number=True),
    )
    rows = []
    for group in sorted(answer.groups, key=lambda group: -group.n_bytes):
        shape = f"{group.dtype}[{','.join(map(str, group.shape))}]"
        copies = f" x {group.n_arrays}" if group.n_arrays > 1 else ""
        cells = (group.name, shape + copies, str(group.spec), bytes_text(group.local_bytes))
        rows.append(Row(cells=cells, notes=(_short_paths(group.reason),) if group.reason else ()))
    return Table(columns, tuple(rows))


def _constraint_lines(answer: Autosharding) -> Iterator[str]:
    for constraint in answer.constraints:
        yield constraint_line(constraint, _short_paths(constraint.source))


def _comparison_table(answer: Autosharding) -> Table:
    columns = (
        Column(head=""),
        Column(head="mesh", drop=1),
        Column(head="step", is_number=True),
        Column(head="communication", is_number=True, drop=2),
        Column(head="memory", is_number=True),
        Column(head=""),
    )
    rows = [_cost_row(cost) for cost in (answer.cost, *answer.comparison)]
    return Table(columns, tuple(rows))


def _cost_row(cost: ShardingCost) -> Row:
    cells = (
        cost.name,
        cost.mesh,
        seconds_text(cost.seconds),
        seconds_text(cost.communication_seconds),
        bytes_text(cost.memory_bytes),
        "" if cost.fits else "does not fit",
    )
    return Row(cells=cells, is_faint=not cost.fits)


def _comparison_notes(answer: Autosharding) -> tuple[str, ...]:
    fitting = [cost for cost in answer.comparison if cost.fits]
    if not fitting:
        return ("None of the usual shardings fits.",)
    best = min(fitting, key=lambda cost: cost.seconds)
    if not answer.cost.seconds:
        return ()  # no matrix product and no collective: nothing that the estimate counts
    ratio = best.seconds / answer.cost.seconds
    if abs(ratio - 1) <= NOISE:
        text = f"Equal to {best.name}, the best of these that fits: within {NOISE:.0%}"
        saved = best.memory_bytes - answer.cost.memory_bytes
        if saved >= 2**20:
            text += f", with {bytes_text(saved)} less memory a device"
        return (f"{text}.",)
    return (f"{ratio:.2f} times as fast as the best of these that fits, {best.name}.",)


def _communication_title(answer: Autosharding) -> str:
    total, busy = answer.cost.communication_seconds, answer.busy_seconds
    return (
        f"Collectives of a step: {seconds_text(total)}, beside {seconds_text(busy)} of operations"
    )


def _collective_table(answer: Autosharding) -> Table:
    columns = (
        Column(head="collective"),
        Column(head="axes"),
        Column(head="operand", is_number=True),
        Column(head="calls", is_number=True),
        Column(head="time", is_number=True),
        Column(head="share", is_number=True, drop=1),
        Column(head="line", can_truncate=True, is_code=True),
    )
    total = sum(use.seconds for use in answer.collectives)
    rows = [_collective_row(use, total) for use in answer.collectives[:_MAX_COLLECTIVES]]
    rest = answer.collectives[_MAX_COLLECTIVES:]
    if rest:
        seconds = sum(use.seconds for use in rest)
        cells = (f"{len(rest)} more", "", "", "", seconds_text(seconds), "", "")
        rows.append(Row(cells=cells, is_faint=True))
    return Table(columns, tuple(rows))


def _collective_row(use: CollectiveUse, total: float) -> Row:
    cells = (
        use.kind.replace("_", "-"),
        ", ".join(use.axes),
        bytes_text(use.operand_bytes),
        str(use.count),
        seconds_text(use.seconds),
        share_text(use.seconds, total),
        _short_paths(use.source),
    )
    return Row(cells=cells)


def _short_paths(text: str) -> str:
    """Return text with the paths below the current folder as relative ones."""
    return text.replace(os.getcwd() + os.sep, "")
