"""A small failing case drawn: inputs, what was wanted, and what each device holds against it.

Wrong devices carry a mark, so that nothing is lost without colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from shardlab.records.judgement import CaseResult
from shardlab.render.picture import Cell, Grid, Picture
from shardlab.render.terminal import Line, Span

RIGHT, WRONG = "✓", "✗"
_FILL_RIGHT, _FILL_WRONG = 2, 5  # green and vermilion of the palette
_GAP = "  "


def exhibit_lines(case: CaseResult, width: int) -> Iterator[Line]:
    """Yield a case laid open: its call, its inputs, then a row for each device."""
    facts = case.facts
    on = f" on {case.mesh}" if case.mesh else ""
    yield [Span(f"A small case that fails: {facts.get('call', case.name)}{on}", is_strong=True)]
    for each in facts.get("inputs", ()):
        yield from _folded(f"{each['name']} = {each['text']}", width)
    if "expected" in facts:
        yield from _folded(f"want {facts['expected']}", width)
    if "got" in facts:
        yield from _folded(f"got  {facts['got']}", width)
    for output in facts.get("outputs", ()):
        yield []
        yield from output_lines(output, width)


def output_lines(output: Mapping[str, Any], width: int) -> Iterator[Line]:
    """Yield one output: what each device holds and what it should."""
    asked = f", {output['asked']} was asked" if output["asked"] else ""
    yield [Span(f"  {output['name']}  {output['array']}{asked}")]
    rows = [_row(device) for device in output["devices"]]
    has_places = any(row[1] for row in rows)
    heads = ["device", "piece" if has_places else "", "holds", "should hold"]
    if not any(row[3] for row in rows):
        heads[3] = ""
    widths = _widths([heads, *rows], width - 6)
    yield [Span("    " + _joined(heads, widths), is_faint=True)]
    n_hidden = output["n_devices"] - len(rows)
    for at, (row, device) in enumerate(zip(rows, output["devices"], strict=True)):
        if n_hidden and at == len(rows) - 1:
            yield [Span(f"    ... {n_hidden} more devices ...", is_faint=True)]
        is_wrong = device["is_wrong"]
        mark, ink = (WRONG, "red") if is_wrong else (RIGHT, "green")
        yield [
            Span(f"  {mark} ", ink=ink, is_strong=True),
            Span(_joined(row, widths).rstrip(), ink="red" if is_wrong else ""),
        ]


def _row(device: Mapping[str, Any]) -> list[str]:
    place = f" ({device['place']})" if device["place"] else ""
    return [f"{device['device']}{place}", device["index"], device["holds"], device["should"]]


def _widths(rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return the width of each column; the two of numbers share what the others leave."""
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    left = max(20, room - widths[0] - widths[1] - 3 * len(_GAP))
    if widths[2] + widths[3] > left:
        widths[3] = min(widths[3], max(left // 2, left - widths[2]))
        widths[2] = min(widths[2], left - widths[3])
    return widths


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [f"{_cut(text, size):<{size}}" for text, size in zip(row, widths, strict=True) if size]
    return _GAP.join(cells)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: max(size - 1, 0)]}…"


def _folded(text: str, width: int) -> Iterator[Line]:
    for line in wrap(f"  {text}", width, subsequent_indent="      "):
        yield [Span(line)]


def exhibit_picture(case: CaseResult) -> Picture:
    """Return the same as a picture of boxes, for SVG: one grid for each output."""
    facts = case.facts
    said = [f"{each['name']} = {each['text']}" for each in facts.get("inputs", ())]
    grids = tuple(_grid(output) for output in facts.get("outputs", ()))
    title = f"{facts.get('call', case.name)}{f' on {case.mesh}' if case.mesh else ''}"
    words = [
        f"device {device['device']} holds {device['holds']}"
        + (f" and should hold {device['should']}" if device["is_wrong"] else "")
        for output in facts.get("outputs", ())
        for device in output["devices"]
    ]
    return Picture(title, tuple(said), grids, "; ".join(words))


def _grid(output: Mapping[str, Any]) -> Grid:
    cells = tuple(_cell(device) for device in output["devices"])
    asked = f"; {output['asked']} was asked" if output["asked"] else ""
    more = output["n_devices"] - len(cells)
    return Grid(
        title=f"{output['name']}  {output['array']}",
        caption=f"want {output['expected']}{asked}" + (f"; {more} more devices" if more else ""),
        row_labels=("",),
        column_labels=tuple(device["place"] for device in output["devices"]),
        cells=(cells,),
        is_summary=bool(more),
        is_array=False,
    )


def _cell(device: Mapping[str, Any]) -> Cell:
    mark = WRONG if device["is_wrong"] else RIGHT
    lines = [f"{mark} device {device['device']}", device["holds"]]
    if device["is_wrong"] and device["should"]:
        lines.append(f"not {device['should']}")
    hover = f"device {device['device']} {device['place']} holds {device['holds']}"
    return Cell(tuple(lines), _FILL_WRONG if device["is_wrong"] else _FILL_RIGHT, hover)
