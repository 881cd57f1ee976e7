"""The minimal failing case as text: inputs, and every device against its target.

Wrong devices have a mark, so that nothing is lost without color.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from shardlab._text.printable import printable_data, printable_text
from shardlab.judge.judgement import CaseResult
from shardlab.render.terminal import Line, Span

RIGHT, WRONG, OPEN = "✓", "✗", "·"
_GAP = "  "
_HEADS = ("device", "index", "holds", "expected")


def counterexample_lines(case: CaseResult, width: int) -> Iterator[Line]:
    """Yield the case: its call, its inputs, then a row for each device."""
    # Values and names come from the submission, and go to a terminal.
    facts = printable_data(case.facts)
    mesh = f" on {case.mesh}" if case.mesh else ""
    title = f"Minimal failing case: {facts.get('call', case.name)}{mesh}"
    for line in wrap(title, width, subsequent_indent="  ", break_on_hyphens=False):
        yield [Span(text=line, is_strong=True)]
    for value in facts.get("inputs", ()):
        yield from _wrap_lines(f"{value['name']} = {value['text']}", width)
    if "expected" in facts:
        yield from _wrap_lines(f"expected {facts['expected']}", width)
    if "got" in facts:
        yield from _wrap_lines(f"returned {facts['got']}", width)
    collectives = facts.get("collectives", ())
    if collectives:
        calls = ", ".join(f"{figures['count']} {figures['op']}" for figures in collectives)
        total = sum(figures["payload_bytes"] for figures in collectives)
        yield from _wrap_lines(f"collectives: {calls}; {total:,} B by each device", width)
    outputs = facts.get("outputs", ())
    if outputs and all(_is_right(output) for output in outputs):
        yield from _verdict_summary(case, width)
        return
    for output in outputs:
        yield []
        yield from output_lines(output, width)


def _is_right(output: Mapping[str, Any]) -> bool:
    return all(device["is_wrong"] is False for device in output["devices"])


def _verdict_summary(case: CaseResult, width: int) -> Iterator[Line]:
    """Yield what fails if all values are right: a table of them would show nothing."""
    yield []
    yield from _wrap_lines("Every device holds the correct values. What fails in this case:", width)
    for verdict in case.verdicts:
        yield from _wrap_lines(printable_text(f"{verdict.code}: {verdict.what}"), width)


def output_lines(output: Mapping[str, Any], width: int) -> Iterator[Line]:
    """Yield one output: what each device holds, and what the wrong ones should hold.

    One row for each device if that fits, otherwise one line for each value.
    """
    spec = f", expected {output['asked']}" if output["asked"] else ""
    yield [Span(text=f"  {output['name']}  {output['array']}{spec}")]
    devices = output["devices"]
    n_hidden = output["n_devices"] - len(devices)
    rows = [_device_row(device) for device in devices]
    heads = [head if any(row[i] for row in rows) else "" for i, head in enumerate(_HEADS)]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(_HEADS))]
    # A table that wraps cannot be read, so rows become blocks before that.
    is_table = sum(size + len(_GAP) for size in widths if size) <= width - 2
    if is_table:
        yield [Span(text="    " + _join_columns(heads, widths), is_faint=True)]
    for number, (row, device) in enumerate(zip(rows, devices, strict=True)):
        if n_hidden and number == len(rows) - 1:
            yield [Span(text=f"    ... {n_hidden} more devices ...", is_faint=True)]
        mark, ink = _device_mark(device)
        texts = [_join_columns(row, widths).rstrip()] if is_table else _stack_row(row, width - 4)
        for i, text in enumerate(texts):
            start = f"  {mark} " if i == 0 else "    "
            yield [
                Span(text=start, ink=ink, is_strong=True),
                Span(text=text, ink="red" if mark == WRONG else ""),
            ]


def _stack_row(row: Sequence[str], width: int) -> list[str]:
    """Return what one device holds in lines of its own, truncated to the width."""
    lines = [f"device {row[0]}  {row[1]}".rstrip(), f"  holds     {row[2]}"]
    lines += [f"  expected  {row[3]}"] if row[3] else []
    return [_truncate(line, width) for line in lines]


def _device_mark(device: Mapping[str, Any]) -> tuple[str, str]:
    """Return the mark of a device and its ink; it is open if many values would be right."""
    if device["is_wrong"] is None:
        return OPEN, ""
    return (WRONG, "red") if device["is_wrong"] else (RIGHT, "green")


def _device_row(device: Mapping[str, Any]) -> list[str]:
    coordinates = f" ({device['place']})" if device["place"] else ""
    expected = device["should"] if device["is_wrong"] else ""
    return [f"{device['device']}{coordinates}", device["index"], device["holds"], expected]


def _join_columns(row: Sequence[str], widths: Sequence[int]) -> str:
    return _GAP.join(f"{text:<{size}}" for text, size in zip(row, widths, strict=True) if size)


def _truncate(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: max(size - 1, 0)]}…"


def _wrap_lines(text: str, width: int) -> Iterator[Line]:
    for line in wrap(f"  {text}", width, subsequent_indent="      "):
        yield [Span(text=line)]
