"""Sheets as GitHub-flavored Markdown, for design documents and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shardlab.render.sheet import Column, Section, Table

_CHANGE_SIGNS = ("+ ", "- ", "~ ")  # lines of a comparison; Markdown would read them as a list
_TICKS = re.compile(r"`+")
_MARKS = re.compile(r"([\\`*_{}\[\]<>|#~])")


def sections_markdown(sections: Iterable[Section]) -> Iterator[str]:
    """Yield the Markdown blocks of sections: a heading, a table, a list."""
    for section in sections:
        yield f"### {section.title}"
        if section.table is not None:
            yield table_markdown(section.table)
        if section.lines:
            yield "\n".join(f"- {escape_markdown(line)}" for line in section.lines)


def table_markdown(table: Table) -> str:
    """Return a table; headings inside it become bold rows, notes below a row a last column.

    >>> from shardlab.render.sheet import Column, Row
    >>> columns = (Column(head="tensor", is_code=True), Column(head="bytes", is_number=True))
    >>> print(table_markdown(Table(columns, (Row(cells=("a_b", "3")),))))
    | tensor | bytes |
    |---|---:|
    | `a_b` | 3 |
    """
    has_beneath = any(row.notes for row in table.rows)
    columns = (*table.columns, *([Column(head="")] if has_beneath else []))
    heads = " | ".join(column.head or " " for column in columns)
    marks = "|".join("---:" if column.is_number else "---" for column in columns)
    lines = [f"| {heads} |", f"|{marks}|"]
    for row in table.rows:
        if row.heading:
            cells = [
                f"**{escape_markdown(row.heading, in_table=True)}**",
                *[""] * (len(columns) - 1),
            ]
        else:
            pairs = zip(row.cells, table.columns, strict=True)
            cells = [
                _cell_markdown(text, column.is_code and not row.is_faint) for text, column in pairs
            ]
            notes = (escape_markdown(note, in_table=True) for note in row.notes)
            cells += ["<br>".join(notes)] if has_beneath else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell_markdown(text: str, is_code: bool) -> str:
    if not is_code or not text:
        return escape_markdown(text, in_table=True)
    if text[:2] in _CHANGE_SIGNS:
        return f"`{text[0]}` {_cell_markdown(text[2:], True)}"
    # "layers.*.up ×8": the repeat count is text, only the name is code.
    name, times, count = text.partition(" ×")
    return code_markdown(name, in_table=True) + times + count


def escape_markdown(text: str, *, in_table: bool = False) -> str:
    """Return text without active Markdown characters: words that contain any become code.

    >>> print(escape_markdown("layers.*.up ×8 → a_b: 12.5 GB"))
    `layers.*.up` ×8 → `a_b`: 12.5 GB
    >>> print(escape_markdown("a|b `c`"), escape_markdown("a|b", in_table=True))
    `a|b` \\`c\\` `a\\|b`
    """
    if text[:2] in _CHANGE_SIGNS:
        return f"`{text[0]}` {escape_markdown(text[2:], in_table=in_table)}"
    return " ".join(_escape_word(word, in_table) for word in text.split(" "))


def _escape_word(word: str, in_table: bool) -> str:
    core = word.rstrip(".,;:")  # punctuation stays outside of the code span
    if not _MARKS.search(core):
        return word
    if "`" in core:  # a code span would need a longer fence; a backslash is shorter
        return _MARKS.sub(r"\\\1", word)
    return code_markdown(core, in_table=in_table) + word[len(core) :]


def code_markdown(text: str, *, in_table: bool = False) -> str:
    """Return text as a code span; GitHub needs `|` escaped in a table even inside code.

    >>> print(code_markdown("a|b"), code_markdown("a|b", in_table=True), code_markdown("a`b"))
    `a|b` `a\\|b` `` a`b ``
    """
    escaped = text.replace("|", r"\|") if in_table else text
    if "`" not in escaped:
        return f"`{escaped}`"
    # CommonMark: a code span that contains backticks needs a longer fence and inner spaces.
    fence = "`" * (max(map(len, _TICKS.findall(escaped))) + 1)
    return f"{fence} {escaped} {fence}"
