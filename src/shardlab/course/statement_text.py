"""A problem's page for the terminal: words folded to the width, code as it is, layouts drawn.

Only the Markdown that problem pages use: headings, paragraphs, lists, fenced blocks, tables as
they are. A `layout` block holds lines such as `f32[8,6] P('data',None) data=2,model=4`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from shardlab.render.terminal import DEFAULT_WIDTH, Line, Span, draw_picture, lines_rich, lines_text
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.layout_picture import fitting_picture
from shardlab.sharding.shape import parse_array

if TYPE_CHECKING:
    from rich.text import Text

# Wider lines of words are hard to read.
_WIDEST = 100
_LAYOUT = re.compile(r"(\S+\[[^\]]*\]|\S+)\s+(P\(.*\))\s+(\S.*)")
# ([name](wrong/name.py)): the file that proves a pitfall is for the audit, and gives nothing away.
_PROOF = re.compile(r"\s*\(?\[[^\]]*\]\(wrong/[^)]*\)\)?")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
_ITEM = re.compile(r"(\s*)([-*]|\d+\.)\s+")
# Code comes first, since the stars in it are powers.
_STARS = re.compile(r"(`[^`]*`)|\*\*|(?<![\w*])\*(\S(?:[^*]*\S)?)\*(?![\w*])")
_FENCE = "```"
_FIXED = "\N{NO-BREAK SPACE}"


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
    """Return a page for rich to print in colour."""
    return lines_rich(statement_lines(statement, width))


def statement_lines(statement: str, width: int = DEFAULT_WIDTH) -> Iterator[Line]:
    """Yield a page's lines; one empty line between blocks."""
    blocks = _blocks(statement.splitlines())
    for n, (language, lines) in enumerate(blocks):
        if n:
            yield []
        if language is None:
            yield from _words(lines, min(max(width, 20), _WIDEST))
        elif language == "layout":
            yield from _layouts(lines, max(width - 4, 20))
        else:
            yield from ([Span(text=f"    {line}", ink="cyan")] for line in lines)


def parse_layout_line(line: str) -> Layout:
    """Return the layout that a line of a `layout` block stands for.

    >>> print(parse_layout_line("f32[8,6] P('data',None) data=2,model=4").shard_shape)
    (4, 6)
    """
    parts = _LAYOUT.fullmatch(line.strip())
    array, spec, mesh = parts.groups() if parts else (line.strip(), "", "")
    shape, dtype = parse_array(array)
    return layout(shape, spec, mesh, dtype)


def unstarred(text: str) -> str:
    """Return words without the stars of emphasis; code keeps its own.

    >>> unstarred("on *every* device, **not** `(a * b) ** 2`, 2 * 3")
    'on every device, not `(a * b) ** 2`, 2 * 3'
    """
    return _STARS.sub(lambda found: found[1] or found[2] or "", text)


def _layouts(lines: Sequence[str], width: int) -> Iterator[Line]:
    for n, line in enumerate(filter(str.strip, lines)):
        if n:
            yield []
        picture = fitting_picture(parse_layout_line(line), width)
        yield from (
            [Span(text="    "), *drawn] if drawn else [] for drawn in draw_picture(picture, width)
        )


def _blocks(lines: Sequence[str]) -> Iterator[tuple[str | None, list[str]]]:
    """Yield each block with the language of its fence; None for words."""
    language: str | None = None
    held: list[str] = []
    for line in [*lines, ""]:
        is_fence = line.startswith(_FENCE)
        if is_fence or (language is None and not line.strip()):
            if held:
                yield language, held
            held = []
            if is_fence:
                language = None if language is not None else line.removeprefix(_FENCE).strip()
        else:
            held.append(line)
    if held:
        yield language, held


def _words(lines: Sequence[str], width: int) -> Iterator[Line]:
    if heading := re.fullmatch(r"(#+)\s+(.*)", lines[0]):
        yield [Span(text=heading[2], is_strong=True)]
        if heading[1] == "#":
            yield [Span(text="=" * min(len(heading[2]), width), is_faint=True)]
        if len(lines) > 1:
            yield from _words(lines[1:], width)
    elif lines[0].startswith("|"):
        yield from _table(lines)
    else:
        for item in _items(lines):
            yield from _folded(item, width)


def _items(lines: Sequence[str]) -> list[str]:
    """Return paragraphs and list items, each on one line."""
    items: list[str] = []
    for line in lines:
        if items and not _ITEM.match(line):
            items[-1] += f" {line.strip()}"
        else:
            items.append(line)
    return items


def _folded(item: str, width: int) -> Iterator[Line]:
    text = unstarred(_LINK.sub(r"\1", _PROOF.sub("", item)))
    found = _ITEM.match(text)
    indent = " " * len(found[0]) if found else ""
    # Short code stays on one line: textwrap does not break at this kind of space.
    kept = re.sub(r"`[^`]{1,30}`", lambda code: code[0].replace(" ", _FIXED), text)
    is_code = False
    for line in wrap(kept, width, subsequent_indent=indent, break_on_hyphens=False):
        pieces = line.replace(_FIXED, " ").split("`")
        spans = [_span(piece, is_code ^ bool(n % 2)) for n, piece in enumerate(pieces)]
        yield [span for span in spans if span.text]
        is_code ^= len(pieces) % 2 == 0


def _span(text: str, is_code: bool) -> Span:
    return Span(text=text, ink="cyan") if is_code else Span(text=text)


def _table(rows: Sequence[str]) -> Iterator[Line]:
    """Yield a table with its columns under each other, and the line of dashes as a rule."""
    plain = [unstarred(row).strip("| ") for row in rows]
    cells = [[cell.strip(" `") for cell in row.split("|")] for row in plain]
    widths = [max(map(len, column)) for column in zip(*cells, strict=False)]
    for row in cells:
        if all(set(cell) <= set("-: ") for cell in row):
            row = ["-" * width for width in widths]
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield [Span(text="    " + "  ".join(padded).replace("`", ""))]
