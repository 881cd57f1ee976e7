"""Renders a problem's page for the terminal: text wrapped, code verbatim, layouts drawn.

Supports only the Markdown that problem pages use: headings, paragraphs, lists, fenced blocks and
tables. A `layout` block holds lines such as `f32[8,6] P('data',None) data=2,model=4`. The question
of a `predict` block stands in its place, and its answer at the end of the page. A `devices` block
is a table of what each device holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab._text.printable import printable_lines
from shardlab.course.devices_block import DevicesBlock, parse_devices_block
from shardlab.course.devices_text import devices_lines
from shardlab.course.prediction import Prediction, parse_prediction
from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, draw_picture, lines_rich, lines_text
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.layout_render import fitting_picture
from shardlab.sharding.shape import parse_array

if TYPE_CHECKING:
    from rich.text import Text

_MAX_TEXT_WIDTH = 100  # wider lines of text are hard to read
# The spec is written with P(...), so that commas inside it do not end it.
_LAYOUT = re.compile(r"(\S+\[[^\]]*\]|\S+)\s+(P\(.*\))\s+(\S.*)")
# ([name](wrong/name.py)): the wrong submission of a pitfall is for the audit, not for learners.
_WRONG_LINK = re.compile(r"\s*\(?\[[^\]]*\]\(wrong/[^)]*\)\)?")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
_ITEM = re.compile(r"(\s*)([-*]|\d+\.)\s+")
# Code comes first in the alternation, because the stars in it are powers.
_EMPHASIS = re.compile(r"(`[^`]*`)|\*\*|(?<![\w*])\*(\S(?:[^*]*\S)?)\*(?![\w*])")
_FENCE = "```"
_NO_BREAK = "\N{NO-BREAK SPACE}"
_INDENT = "    "
_COLUMN_GAP = "  "
_MIN_COLUMN_WIDTH = 8


def statement_text(statement: str, width: int = DEFAULT_WIDTH) -> str:
    """Return a page as plain text.

    >>> page = "# Sum\\n\\n- All of\\n  it ([a](wrong/a.py)).\\n\\n```python\\nf(x)\\n```"
    >>> print(statement_text(page))
    Sum
    ===
    <BLANKLINE>
    - All of it.
    <BLANKLINE>
        f(x)
    """
    return lines_text(statement_lines(statement, width))


def statement_rich(statement: str, width: int = DEFAULT_WIDTH) -> Text:
    """Return a page for rich to print in color."""
    return lines_rich(statement_lines(statement, width))


def statement_lines(statement: str, width: int = DEFAULT_WIDTH) -> Iterator[Line]:
    """Yield a page's lines, with one empty line between blocks.

    A page is a text of anybody's catalogue: nothing in it may control the terminal.
    """
    blocks = _split_blocks(printable_lines(statement.expandtabs(4)).splitlines())
    text_width = min(max(width, 20), _MAX_TEXT_WIDTH)
    predictions: list[Prediction] = []
    for n, (language, lines) in enumerate(blocks):
        if n:
            yield []
        if language is None:
            yield from _text_lines(lines, text_width)
        elif language == "layout":
            yield from _layout_lines(lines, max(width - 4, 20))
        elif language == "devices" and (picture := _read_devices(lines)) is not None:
            rows = devices_lines(picture, max(width - 4, 20))
            yield from ([Span(text=_INDENT), *row] for row in rows)
        elif language == "predict" and (prediction := _read_prediction(lines)) is not None:
            predictions.append(prediction)
            yield from _question_lines(prediction, len(predictions), text_width)
        else:
            yield from ([Span(text=_INDENT + line, ink="cyan")] for line in lines)
    if predictions:
        yield []
        yield [Span(text="Answers to the predictions", is_strong=True)]
        for number, prediction in enumerate(predictions, 1):
            item = f"{number}. {prediction.answer_text}: {prediction.why}"
            yield from _wrap_item(item, text_width)


def _read_prediction(lines: Sequence[str]) -> Prediction | None:
    """Return the question of a block; one that cannot be read is shown as it is."""
    try:
        return parse_prediction("\n".join(lines))
    except ValueError:
        return None


def _read_devices(lines: Sequence[str]) -> DevicesBlock | None:
    """Return the picture of a block; one that cannot be read is shown as it is."""
    try:
        return parse_devices_block("\n".join(lines))
    except ValueError:
        return None


def _question_lines(prediction: Prediction, number: int, width: int) -> Iterator[Line]:
    yield from _wrap_item(f"Predict ({number}): {prediction.question}", width)
    for letter, choice in zip("abcdefgh", prediction.choices, strict=False):
        lines = _wrap_item(f"{letter}) {choice}", width - 2)
        yield from ([Span(text="  "), *line] for line in lines)


def parse_layout_line(line: str) -> Layout:
    """Return the layout of one line of a `layout` block.

    >>> print(parse_layout_line("f32[8,6] P('data',None) data=2,model=4").shard_shape)
    (4, 6)
    """
    parts = _LAYOUT.fullmatch(line.strip())
    array, spec, mesh = parts.groups() if parts else (line.strip(), "", "")
    shape, dtype = parse_array(array)
    return layout(shape, spec, mesh, dtype)


def strip_emphasis(text: str) -> str:
    """Return text without the stars of emphasis; code keeps its own.

    >>> strip_emphasis("on *every* device, **not** `(a * b) ** 2`, 2 * 3")
    'on every device, not `(a * b) ** 2`, 2 * 3'
    """
    return _EMPHASIS.sub(lambda match: match[1] or match[2] or "", text)


def _layout_lines(lines: Sequence[str], width: int) -> Iterator[Line]:
    for n, line in enumerate(filter(str.strip, lines)):
        if n:
            yield []
        picture = fitting_picture(parse_layout_line(line), width)
        yield from (
            [Span(text="    "), *row] if row else [] for row in draw_picture(picture, width)
        )


def _split_blocks(lines: Sequence[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Yield each block with the language of its fence; None for text."""
    language: str | None = None
    block: list[str] = []
    for line in [*lines, ""]:
        is_fence = line.startswith(_FENCE)
        if is_fence or (language is None and not line.strip()):
            if block:
                yield language, block
            block = []
            if is_fence:
                language = None if language is not None else line.removeprefix(_FENCE).strip()
        else:
            block.append(line)
    if block:
        yield language, block


def _text_lines(lines: Sequence[str], width: int) -> Iterator[Line]:
    if heading := re.fullmatch(r"(#+)\s+(.*)", lines[0]):
        yield [Span(text=heading[2], is_strong=True)]
        if heading[1] == "#":
            yield [Span(text="=" * min(len(heading[2]), width), is_faint=True)]
        if len(lines) > 1:
            yield from _text_lines(lines[1:], width)
    elif lines[0].startswith("|"):
        yield from _table_lines(lines, width)
    else:
        for item in _join_items(lines):
            yield from _wrap_item(item, width)


def _join_items(lines: Sequence[str]) -> list[str]:
    """Return paragraphs and list items, each on one line."""
    items: list[str] = []
    for line in lines:
        if items and not _ITEM.match(line):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    return items


def _wrap_item(item: str, width: int) -> Iterator[Line]:
    text = strip_emphasis(_LINK.sub(r"\1", _WRONG_LINK.sub("", item)))
    bullet = _ITEM.match(text)
    indent = " " * len(bullet[0]) if bullet else ""
    # textwrap does not break at a no-break space, so short code stays on one line.
    unbroken = re.sub(r"`[^`]{1,30}`", lambda code: code[0].replace(" ", _NO_BREAK), text)
    is_code = False
    for line in wrap(unbroken, width, subsequent_indent=indent, break_on_hyphens=False):
        segments = line.replace(_NO_BREAK, " ").split("`")
        spans = [_text_span(text, is_code ^ bool(n % 2)) for n, text in enumerate(segments)]
        yield [span for span in spans if span.text]
        # An odd number of backticks: code goes on in the next line.
        is_code ^= len(segments) % 2 == 0


def _text_span(text: str, is_code: bool) -> Span:
    return Span(text=text, ink="cyan") if is_code else Span(text=text)


def _table_lines(rows: Sequence[str], width: int) -> Iterator[Line]:
    """Yield a table with aligned columns, and the line of dashes as a rule.

    A cell that is too wide goes on in the next line, in its own column.
    """
    # Only the outer bars: the first or the last cell of a row can be empty.
    plain = [strip_emphasis(row).strip().removeprefix("|").removesuffix("|") for row in rows]
    cells = [[cell.strip(" `").replace("`", "") for cell in row.split("|")] for row in plain]
    widths = [max(map(len, column)) for column in zip(*cells, strict=False)]
    free_width = width - len(_INDENT) - len(_COLUMN_GAP) * (len(widths) - 1)
    while sum(widths) > free_width and max(widths) > _MIN_COLUMN_WIDTH:
        widths[widths.index(max(widths))] -= 1
    for row in cells:
        if all(set(cell) <= set("-: ") for cell in row):
            # Markdown needs only three dashes; a terminal should show a full rule.
            row = ["-" * column_width for column_width in widths]
        columns = [wrap(cell, size) for cell, size in zip(row, widths, strict=False)]
        for texts in zip_longest(*columns, fillvalue=""):
            padded = [text.ljust(size) for text, size in zip(texts, widths, strict=False)]
            yield [Span(text=_INDENT + _COLUMN_GAP.join(padded).rstrip())]
