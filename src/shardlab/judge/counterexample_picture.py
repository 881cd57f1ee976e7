"""A small failing case drawn: inputs, what was wanted, and what each device holds against it.

Wrong devices carry a mark, so that nothing is lost without colour.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from shardlab._text.printable import printable_data, printable_text
from shardlab.judge.judgement import CaseResult
from shardlab.render.picture import Cell, Grid, Picture
from shardlab.render.terminal import Line, Span

RIGHT, WRONG, OPEN = "✓", "✗", "·"
_FILL_RIGHT, _FILL_WRONG = 2, 5  # green and vermilion of the palette
_GAP = "  "


def exhibit_lines(case: CaseResult, width: int) -> Iterator[Line]:
    """Yield a case laid open: its call, its inputs, then a row for each device."""
    facts = printable_data(case.facts)
    on = f" on {case.mesh}" if case.mesh else ""
    title = f"A small case that fails: {facts.get('call', case.name)}{on}"
    for line in wrap(title, width, subsequent_indent="  ", break_on_hyphens=False):
        yield [Span(text=line, is_strong=True)]
    for each in facts.get("inputs", ()):
        yield from _folded(f"{each['name']} = {each['text']}", width)
    if "expected" in facts:
        yield from _folded(f"want {facts['expected']}", width)
    if "got" in facts:
        yield from _folded(f"got  {facts['got']}", width)
    sent = [f"{each['count']} {each['op']}" for each in facts.get("collectives", ())]
    total = sum(each["payload_bytes"] for each in facts.get("collectives", ()))
    if sent:
        yield from _folded(f"exchanges {', '.join(sent)}; {total:,} B by each device", width)
    outputs = facts.get("outputs", ())
    if outputs and all(_is_right(output) for output in outputs):
        yield from _beside_the_numbers(case, width)
        return
    for output in outputs:
        yield []
        yield from output_lines(output, width)


def _is_right(output: Mapping[str, Any]) -> bool:
    return all(device["is_wrong"] is False for device in output["devices"])


def _beside_the_numbers(case: CaseResult, width: int) -> Iterator[Line]:
    """Yield what fails where all numbers are right: a table of them would show nothing."""
    yield []
    yield from _folded("Every device holds the right numbers. What fails in this case:", width)
    for verdict in case.verdicts:
        yield from _folded(printable_text(f"{verdict.code}  {verdict.what}"), width)


def output_lines(output: Mapping[str, Any], width: int) -> Iterator[Line]:
    """Yield one output: what each device holds, and what the wrong ones should.

    A row for each device where that fits, else lines beneath each other.
    """
    asked = f", {output['asked']} was asked" if output["asked"] else ""
    yield [Span(text=f"  {output['name']}  {output['array']}{asked}")]
    devices = output["devices"]
    n_hidden = output["n_devices"] - len(devices)
    rows = [_row(device) for device in devices]
    heads = ["device", "piece", "holds", "should hold"]
    heads = [head if any(row[at] for row in rows) else "" for at, head in enumerate(heads)]
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(4)]
    is_table = sum(size + len(_GAP) for size in widths if size) <= width - 2
    if is_table:
        yield [Span(text="    " + _joined(heads, widths), is_faint=True)]
    for at, (row, device) in enumerate(zip(rows, devices, strict=True)):
        if n_hidden and at == len(rows) - 1:
            yield [Span(text=f"    ... {n_hidden} more devices ...", is_faint=True)]
        mark, ink = _mark(device)
        texts = [_joined(row, widths).rstrip()] if is_table else _stacked(row, width - 4)
        for number, text in enumerate(texts):
            start = f"  {mark} " if number == 0 else "    "
            yield [
                Span(text=start, ink=ink, is_strong=True),
                Span(text=text, ink="red" if mark == WRONG else ""),
            ]


def _stacked(row: Sequence[str], room: int) -> list[str]:
    """Return what one device holds in lines of its own; what is too wide is cut."""
    lines = [f"device {row[0]}  {row[1]}".rstrip()]
    lines += [f"  holds        {row[2]}"]
    lines += [f"  should hold  {row[3]}"] if row[3] else []
    return [_cut(line, room) for line in lines]


def _mark(device: Mapping[str, Any]) -> tuple[str, str]:
    """Return the mark of a device and its ink; it is open where many numbers would be right."""
    if device["is_wrong"] is None:
        return OPEN, ""
    return (WRONG, "red") if device["is_wrong"] else (RIGHT, "green")


def _row(device: Mapping[str, Any]) -> list[str]:
    place = f" ({device['place']})" if device["place"] else ""
    should = device["should"] if device["is_wrong"] else ""
    return [f"{device['device']}{place}", device["index"], device["holds"], should]


def _joined(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(f"{text:<{size}}" for text, size in zip(row, widths, strict=True) if size)


def _cut(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: max(size - 1, 0)]}…"


def _folded(text: str, width: int) -> Iterator[Line]:
    for line in wrap(f"  {text}", width, subsequent_indent="      "):
        yield [Span(text=line)]


def exhibit_picture(case: CaseResult) -> Picture:
    """Return the same as a picture of boxes, for SVG: one grid for each output."""
    facts = printable_data(case.facts)
    said = [f"{each['name']} = {each['text']}" for each in facts.get("inputs", ())]
    grids = tuple(_grid(output) for output in facts.get("outputs", ()))
    title = f"{facts.get('call', case.name)}{f' on {case.mesh}' if case.mesh else ''}"
    words = [
        f"device {device['device']} holds {device['holds']}"
        + (f" and should hold {device['should']}" if device["is_wrong"] else "")
        for output in facts.get("outputs", ())
        for device in output["devices"]
    ]
    return Picture(title=title, facts=tuple(said), grids=grids, alternative="; ".join(words))


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
        is_block=False,
    )


def _cell(device: Mapping[str, Any]) -> Cell:
    mark, _ = _mark(device)
    lines = [f"{mark} device {device['device']}", device["holds"]]
    if device["is_wrong"] and device["should"]:
        lines.append(f"not {device['should']}")
    hover = f"device {device['device']} {device['place']} holds {device['holds']}"
    return Cell(tuple(lines), _FILL_WRONG if device["is_wrong"] else _FILL_RIGHT, hover)
