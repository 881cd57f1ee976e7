"""Sheets and findings as Markdown: tables as GitHub draws them, for design documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shardlab.render.sheet import Column, Section, Table

_SIGNS = ("+ ", "- ", "~ ")  # what a comparison begins with would be a list
_TICKS = re.compile(r"`+")
_MARKS = re.compile(r"([\\`*_{}\[\]<>|#~])")


def sections_markdown(sections: Iterable[Section]) -> Iterator[str]:
    """Yield the blocks of sections: a heading, a table, a list."""
    for section in sections:
        yield f"### {section.title}"
        if section.table is not None:
            yield table_markdown(section.table)
        if section.lines:
            yield "\n".join(f"- {escape_markdown(line)}" for line in section.lines)


def table_markdown(table: Table) -> str:
    """Return a table as GitHub reads it; headings within it are bold rows.

    >>> from shardlab.render.sheet import Column, Row
    >>> columns = (Column("tensor"), Column("bytes", True))
    >>> print(table_markdown(Table(columns, (Row(("a_b", "3")),))))
    | tensor | bytes |
    |---|---:|
    | `a_b` | 3 |

    What a terminal shows beneath a row is a column of its own.
    """
    has_beneath = any(row.beneath for row in table.rows)
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
            cells = [_cell(text, column.is_code and not row.is_faint) for text, column in pairs]
            said = (escape_markdown(each, in_table=True) for each in row.beneath)
            cells += ["<br>".join(said)] if has_beneath else []
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(text: str, is_code: bool) -> str:
    if not is_code or not text:
        return escape_markdown(text, in_table=True)
    if text[:2] in _SIGNS:
        return f"`{text[0]}` {_cell(text[2:], True)}"
    name, times, n = text.partition(" ×")
    return code(name, in_table=True) + times + n


def escape_markdown(text: str, *, in_table: bool = False) -> str:
    """Return text in which nothing is a mark: words that look like code become code.

    >>> print(escape_markdown("layers.*.up ×8 → a_b: 12.5 GB"))
    `layers.*.up` ×8 → `a_b`: 12.5 GB
    >>> print(escape_markdown("a|b `c`"), escape_markdown("a|b", in_table=True))
    `a|b` \\`c\\` `a\\|b`
    """
    if text[:2] in _SIGNS:
        return f"`{text[0]}` {escape_markdown(text[2:], in_table=in_table)}"
    return " ".join(_word(word, in_table) for word in text.split(" "))


def _word(word: str, in_table: bool) -> str:
    core = word.rstrip(".,;:")
    if not _MARKS.search(core):
        return word
    if "`" in core:
        return _MARKS.sub(r"\\\1", word)
    return code(core, in_table=in_table) + word[len(core) :]


def code(text: str, *, in_table: bool = False) -> str:
    """Return text as code. A table takes a bar for its own unless it is escaped, a list does not.

    >>> print(code("a|b"), code("a|b", in_table=True), code("a`b"))
    `a|b` `a\\|b` `` a`b ``
    """
    shown = text.replace("|", r"\|") if in_table else text
    if "`" not in shown:
        return f"`{shown}`"
    fence = "`" * (max(map(len, _TICKS.findall(shown))) + 1)
    return f"{fence} {shown} {fence}"
