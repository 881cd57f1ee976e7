"""The minimal failing case as SVG: a card for each device, its wrong elements in red.

Cards are arranged as the mesh is, and carry the hues of their coordinates, as in every picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.judge.counterexample_json import counterexample_json
from shardlab.judge.judgement import CaseResult
from shardlab.render.palette import ALARM, FAINT, LINE, PANEL, PAPER, axis_shade
from shardlab.render.picture import NEUTRAL, WRONG_PAINT, AxisKey
from shardlab.render.svg import draw_keys
from shardlab.render.svg_marks import (
    LINE_HEIGHT,
    MARGIN,
    SMALL_SIZE,
    TITLE_SIZE,
    Box,
    SvgCanvas,
)
from shardlab.render.text_width import TEXT_SIZE, text_width, wrap_to_width

_TEXT_WIDTH = 620.0  # pixels: of sentences and inputs
_PADDING, _CARD_GAP = 10.0, 12.0
_ELEMENT_HEIGHT, _ELEMENT_GAP = 21.0, 4.0
_MAX_COLUMNS = 8  # elements of a vector in one row; of a matrix twice as many
_CARDS_IN_ROW = 4
_SWATCH = 12.0
_MARKS = {"right": "✓", "wrong": "✗", "open": "·"}


def counterexample_svg(case: CaseResult) -> str:
    """Return the case as an SVG element."""
    data = counterexample_json(case)
    canvas = SvgCanvas()
    title = f"{data['call']}{f' on {case.name}' if data['mesh'] else ''}"
    y = _draw_head(canvas, title, data)
    if data["mesh"]:
        keys = [AxisKey(name, axis, size) for axis, (name, size) in enumerate(data["mesh"])]
        y = draw_keys(canvas, keys, y, MARGIN + _TEXT_WIDTH) + 8
    devices = [device for output in data["outputs"] for device in output["devices"]]
    if not any(device["expected"] for device in devices) and not data["returned"]:
        # The values do not show what is wrong: a shape, communication, a program that is rejected.
        y = _draw_verdicts(canvas, data, y)
    if not data["is_right_everywhere"]:
        for output in data["outputs"]:
            y = _draw_output(canvas, output, data["mesh"], y)
    return canvas.to_svg(title, _describe_case(data))


def _draw_head(canvas: SvgCanvas, title: str, data: Mapping[str, Any]) -> float:
    """Draw the call, its inputs, and the result of a part of plain values."""
    y = MARGIN + TITLE_SIZE * 0.8
    canvas.text(MARGIN, y, title, size=TITLE_SIZE, is_bold=True, is_code=True)
    y += 6
    for value in data["inputs"]:
        y = _draw_sentence(canvas, f"{value['name']} = {value['text']}", y, is_code=True)
    if data["expected"]:
        y = _draw_sentence(canvas, f"expected {data['expected']}", y, is_code=True)
    if data["returned"]:
        y = _draw_sentence(canvas, f"returned {data['returned']}", y, is_code=True, is_wrong=True)
    return y + LINE_HEIGHT * 0.6


def _draw_sentence(
    canvas: SvgCanvas, text: str, y: float, *, is_code: bool = False, is_wrong: bool = False
) -> float:
    """Draw text in as many lines as it needs; return the last baseline."""
    # Code is wider than proportional text, for which `wrap_to_width` counts.
    width = _TEXT_WIDTH * (0.8 if is_code else 1.0)
    for line in wrap_to_width(text, width):
        y += LINE_HEIGHT
        canvas.text(MARGIN, y, line, ALARM if is_wrong else FAINT, is_code=is_code)
    return y


def _draw_verdicts(canvas: SvgCanvas, data: Mapping[str, Any], y: float) -> float:
    if data["is_right_everywhere"]:
        y = _draw_sentence(canvas, "Every device holds the correct values. What fails:", y)
    for verdict in data["verdicts"]:
        y = _draw_sentence(canvas, f"{verdict['code']}: {verdict['what']}", y, is_wrong=True)
    return y + LINE_HEIGHT * 0.8


# ---------------------------------------------------------------------------------------- devices


@dataclass(frozen=True)
class _Block:
    """A label, and below it the elements of an array in rows, or its text if there are too many."""

    label: str
    rows: tuple[tuple[str, ...], ...] = ()
    wrong: frozenset[tuple[int, int]] = frozenset()
    text: tuple[str, ...] = ()
    element_width: float = 0.0

    @property
    def width(self) -> float:
        n_columns = max(map(len, self.rows), default=0)
        texts = [text_width(line, is_code=True) for line in self.text]
        columns = n_columns * (self.element_width + _ELEMENT_GAP)
        return max(columns, text_width(self.label, SMALL_SIZE), *texts, 0.0)

    @property
    def height(self) -> float:
        rows = len(self.rows) * (_ELEMENT_HEIGHT + _ELEMENT_GAP)
        return LINE_HEIGHT + rows + LINE_HEIGHT * len(self.text)


@dataclass(frozen=True)
class _Card:
    """One device: what it holds, and what it should hold if that is something else."""

    device: Mapping[str, Any]
    blocks: tuple[_Block, ...]

    @property
    def is_wrong(self) -> bool:
        return bool(self.device["state"] == "wrong")

    @property
    def heading(self) -> str:
        return f"device {self.device['device']}"

    @property
    def width(self) -> float:
        heading = text_width(self.heading, is_bold=True) + 12
        heading += text_width(self.device["place"], SMALL_SIZE, is_code=True)
        heading += (_SWATCH + 2) * len(self.device["coordinate"]) + 24
        return max(heading, *(block.width for block in self.blocks)) + 2 * _PADDING

    @property
    def height(self) -> float:
        return LINE_HEIGHT + sum(block.height + 4 for block in self.blocks) + 2 * _PADDING


def _draw_output(
    canvas: SvgCanvas, output: Mapping[str, Any], mesh: Sequence[Sequence[Any]], y: float
) -> float:
    """Draw one output: its name, then the cards of its devices. Return the y position below."""
    y += LINE_HEIGHT
    name = f"{output['name']}  {output['array']}"
    canvas.text(MARGIN, y, name, size=13, is_bold=True, is_code=True)
    if output["spec"]:
        x = MARGIN + text_width(name, 13, is_code=True) + 14
        canvas.text(x, y, f"expected sharding {output['spec']}", FAINT)
    y += 10
    cards = [_Card(device, tuple(_device_blocks(device))) for device in output["devices"]]
    width = max(card.width for card in cards)
    for row in _arrange_cards(cards, mesh, output["n_devices"]):
        height = max(card.height for card in row)
        for column, card in enumerate(row):
            x = MARGIN + column * (width + _CARD_GAP)
            _draw_card(canvas, card, Box(x=x, y=y, width=width, height=height), mesh)
        y += height + _CARD_GAP
    n_hidden = output["n_devices"] - len(cards)
    if n_hidden:
        canvas.text(MARGIN, y + 8, f"... {n_hidden:,} more devices", FAINT)
        y += LINE_HEIGHT + 4
    return y


def _device_blocks(device: Mapping[str, Any]) -> Iterator[_Block]:
    elements = device["elements"]
    label = f"holds {device['index']}".rstrip()
    rows = None if elements is None else _element_rows(elements["holds"], elements["shape"])
    if elements is None or rows is None:
        yield _Block(label, text=_wrap_code(device["holds"]))
        if device["expected"]:
            yield _Block("expected", text=_wrap_code(device["expected"]))
        return
    n_columns = max(map(len, rows), default=1) or 1
    wrong = frozenset(divmod(position, n_columns) for position in elements["wrong"])
    is_compared = device["state"] == "wrong" and elements["expected"] is not None
    # One width for both, so that an element is right above the one that it should be.
    texts = elements["holds"] + (elements["expected"] if is_compared else [])
    width = max(max(text_width(text, is_code=True) for text in texts) + 10, 26.0)
    yield _Block(label, rows, wrong, element_width=width)
    if is_compared:
        expected_rows = _element_rows(elements["expected"], elements["shape"]) or ()
        yield _Block("expected", expected_rows, element_width=width)
    elif device["expected"]:
        yield _Block("expected", text=_wrap_code(device["expected"]))


def _element_rows(texts: Sequence[str], shape: Sequence[int]) -> tuple[tuple[str, ...], ...] | None:
    """Return elements in rows; a vector is wrapped. None for rows that are too long to draw.

    >>> _element_rows(["1", "2", "3", "4"], [2, 2])
    (('1', '2'), ('3', '4'))
    """
    n_columns = _MAX_COLUMNS if len(shape) < 2 else shape[-1]
    if not texts or n_columns > 2 * _MAX_COLUMNS:
        return None
    starts = range(0, len(texts), n_columns)
    return tuple(tuple(texts[start : start + n_columns]) for start in starts)


def _wrap_code(text: str) -> tuple[str, ...]:
    return tuple(wrap_to_width(text, 180.0))


def _arrange_cards(
    cards: Sequence[_Card], mesh: Sequence[Sequence[Any]], n_devices: int
) -> Iterator[Sequence[_Card]]:
    """Yield rows of cards: along the last mesh axis, if all devices are shown."""
    n_columns = _CARDS_IN_ROW
    if len(cards) == n_devices and len(mesh) > 1 and mesh[-1][1] > 1:
        n_columns = int(mesh[-1][1])
        cards = sorted(cards, key=lambda card: tuple(card.device["coordinate"]))
    for start in range(0, len(cards), n_columns):
        yield cards[start : start + n_columns]


def _draw_card(canvas: SvgCanvas, card: _Card, box: Box, mesh: Sequence[Sequence[Any]]) -> None:
    device = card.device
    edge = ALARM if card.is_wrong else LINE
    with canvas.hover(_device_sentence(device)):
        canvas.box(box, PANEL, stroke=edge, stroke_width=2 if card.is_wrong else 1, radius=6)
        x, y = box.x + _PADDING, box.y + _PADDING + TEXT_SIZE - 1
        for axis, step in enumerate(device["coordinate"]):
            swatch = Box(x=x, y=y - 10, width=_SWATCH, height=_SWATCH)
            canvas.box(swatch, axis_shade(axis, step, mesh[axis][1]), stroke=LINE, radius=2)
            x += _SWATCH + 2
        x += 4 if device["coordinate"] else 0
        canvas.text(x, y, card.heading, is_bold=True)
        x += text_width(card.heading, is_bold=True) + 6
        canvas.text(x, y, device["place"], FAINT, size=SMALL_SIZE, is_code=True)
        color = ALARM if card.is_wrong else FAINT
        mark = _MARKS[device["state"]]
        canvas.text(box.right - _PADDING, y, mark, color, anchor="end", is_bold=True)
        y += 8
        for number, block in enumerate(card.blocks):
            _draw_elements(canvas, block, box.x + _PADDING, y, is_expected=number > 0)
            y += block.height + 4


def _draw_elements(
    canvas: SvgCanvas, block: _Block, x: float, y: float, *, is_expected: bool
) -> None:
    canvas.text(x, y + LINE_HEIGHT - 6, block.label, FAINT, size=SMALL_SIZE)
    y += LINE_HEIGHT
    width = block.element_width
    for i, row in enumerate(block.rows):
        for j, text in enumerate(row):
            element = Box(
                x=x + j * (width + _ELEMENT_GAP),
                y=y + i * (_ELEMENT_HEIGHT + _ELEMENT_GAP),
                width=width,
                height=_ELEMENT_HEIGHT,
            )
            if is_expected:
                canvas.box(element, PAPER, stroke=LINE, radius=3)
            else:
                canvas.paint(element, WRONG_PAINT if (i, j) in block.wrong else NEUTRAL)
            canvas.text(element.middle, element.y + 15, text, anchor="middle", is_code=True)
    for number, line in enumerate(block.text):
        canvas.text(x, y + LINE_HEIGHT * number + 11, line, is_code=True)


# ------------------------------------------------------------------------------ for screen readers


def _describe_case(data: Mapping[str, Any]) -> str:
    sentences = [
        _device_sentence(device) for output in data["outputs"] for device in output["devices"]
    ]
    if data["returned"]:
        sentences.append(f"returned {data['returned']}; expected {data['expected']}")
    return "; ".join(sentences) or data["call"]


def _device_sentence(device: Mapping[str, Any]) -> str:
    place = f" ({device['place']})" if device["place"] else ""
    sentence = f"device {device['device']}{place} holds {device['holds']}"
    return sentence + (f", expected {device['expected']}" if device["expected"] else "")
