"""Renders estimates: bounds, compute and communication, and every formula and figure used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shardlab._text.units import amount_text, bytes_text, seconds_text, share_text
from shardlab.hardware.estimate import CallTime, Estimate, FigureUsed
from shardlab.render.sheet import Column, Row, Section, Sheet, Table, sheet_html, sheet_lines
from shardlab.render.terminal import DEFAULT_WIDTH, lines_rich, lines_text

if TYPE_CHECKING:
    from rich.text import Text

_SYMBOLS = {
    "V": "bytes of the gathered or unreduced array of a group",
    "p": "bytes of the operand on one device",
    "X": "devices of a group",
    "n": "devices of a group in one node",
    "m": "nodes (or slices) of a group",
}


_MEANINGS = {
    "link_bandwidth": "one way per link",
    "nvlink_bandwidth": "one way per device",
    "node_egress": "out of a node",
    "dcn_bandwidth": "per device",
    "die_bandwidth": "one way between the devices of a chip",
    "hop_latency": "per hop",
}


def estimate_text(estimate: Estimate, width: int = DEFAULT_WIDTH) -> str:
    """Return an estimate as plain text."""
    return lines_text(sheet_lines(Sheet("", (), estimate_sections(estimate)), width))


def estimate_rich(estimate: Estimate, width: int = DEFAULT_WIDTH) -> Text:
    """Return an estimate for rich to print in color."""
    return lines_rich(sheet_lines(Sheet("", (), estimate_sections(estimate)), width))


def estimate_html(estimate: Estimate) -> str:
    """Return an estimate as an HTML fragment."""
    return sheet_html(Sheet("", (), estimate_sections(estimate)))


def estimate_sections(estimate: Estimate) -> tuple[Section, ...]:
    """Return a section with the times, and one with the formulas and figures behind them."""
    latency = "" if estimate.has_latency else " without latency"
    title = f"On {estimate.hardware}: {bounds_text(estimate)}{latency}; {estimate.verdict}"
    parts = Section(
        title,
        Table(
            (Column(head=""), Column(head="", is_number=True), Column(head="")),
            _time_rows(estimate),
        ),
    )
    return (parts, Section("Formulas and figures", None, tuple(_formulas_and_figures(estimate))))


def bounds_text(estimate: Estimate) -> str:
    """Return `3.1 ms to 4.2 ms`: all communication overlapped, or all of it exposed."""
    lower, upper = seconds_text(estimate.lower), seconds_text(estimate.upper)
    if estimate.compute_seconds is None:
        return f"{lower} of communication"
    return lower if lower == upper else f"{lower} to {upper}"


def _time_rows(estimate: Estimate) -> tuple[Row, ...]:
    rows = []
    if estimate.compute_seconds is not None:
        share = share_text(estimate.compute_seconds, estimate.upper)
        rows.append(Row(cells=("compute", seconds_text(estimate.compute_seconds), share)))
    total = estimate.communication_seconds
    share = share_text(total, estimate.upper)
    rows.append(Row(cells=("communication", seconds_text(total), share)))
    for axes, seconds in estimate.by_axis().items():
        networks = sorted(
            {call.network for call in estimate.calls if _runs_over(call, axes)} - {""}
        )
        detail = f"{share_text(seconds, estimate.upper)}, {' and '.join(networks) or 'one device'}"
        rows.append(Row(cells=(f"  over {axes}", seconds_text(seconds), detail)))
    return tuple(rows)


def _runs_over(call: CallTime, axes: str) -> bool:
    return call.is_counted and ",".join(call.axes) == axes


def _formulas_and_figures(estimate: Estimate) -> Iterable[str]:
    formulas = dict.fromkeys(call.formula for call in estimate.calls if call.is_counted)
    if estimate.compute_formula:
        formulas = {f"compute: {estimate.compute_formula}": None, **formulas}
    yield from formulas
    # Explain only the symbols that occur in a formula.
    letters = {letter for formula in formulas for letter in _symbols_in(formula)}
    if letters:
        meanings = (
            f"{letter} {meaning}" for letter, meaning in _SYMBOLS.items() if letter in letters
        )
        yield f"where {'; '.join(meanings)}"
    yield from map(figure_text, estimate.figures)
    if estimate.compute_seconds and estimate.communication_seconds:
        yield "lower bound: all communication overlapped with compute; upper bound: all exposed"
    yield _efficiency_text(estimate)
    yield from estimate.notes


def _symbols_in(formula: str) -> set[str]:
    return {
        letter
        for letter in _SYMBOLS
        if any(
            letter == word or word.startswith((f"({letter}-", f"{letter}/"))
            for word in formula.split()
        )
        or f"/{letter}" in formula
    }


def figure_text(figure: FigureUsed) -> str:
    """Return `link_bandwidth 90 GB/s one way per link: JAX scaling book, ...`."""
    if figure.unit == "seconds":
        value = seconds_text(figure.value)
    elif figure.unit == "bytes":
        value = bytes_text(round(figure.value))
    else:
        value = amount_text(figure.value, figure.unit.replace("bytes", "B"))
    meaning = f" {_MEANINGS[figure.name]}" if figure.name in _MEANINGS else ""
    return f"{figure.name} {value}{meaning}: {figure.source}"


def _efficiency_text(estimate: Estimate) -> str:
    compute, network = estimate.compute_efficiency, estimate.network_efficiency
    if estimate.library:
        collectives = f"collectives as {estimate.library}'s model and nccl-tests have them"
        share = "" if network == 1 else f", times {network:g}"
        return f"efficiency {compute:g} of the compute peak; {collectives}{share}"
    if compute == network == 1:
        return "at peak rates (efficiency 1); real programs reach less"
    return f"efficiency {compute:g} of the compute peak, {network:g} of the network's"
