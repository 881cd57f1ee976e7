"""Sheets and findings as Markdown: tables as GitHub draws them, for design documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from shardlab.records.finding import Finding
from shardlab.render.plain import plain
from shardlab.render.sheet import Section, Table

_MARKS = re.compile(r"([\\`*_{}\[\]<>|#~])")


def sections_markdown(sections: Iterable[Section]) -> Iterator[str]:
    """Yield the blocks of sections: a heading, a table, a list."""
    for section in sections:
        yield f"### {section.title}"
        if section.table is not None:
            yield table_markdown(section.table)
        if section.lines:
            yield "\n".join(f"- {escaped(line)}" for line in section.lines)


def table_markdown(table: Table) -> str:
    """Return a table as GitHub reads it; headings within it are bold rows.

    >>> from shardlab.render.sheet import Column, Row
    >>> columns = (Column("tensor"), Column("bytes", True))
    >>> print(table_markdown(Table(columns, (Row(("a_b", "3")),))))
    | tensor | bytes |
    |---|---:|
    | `a_b` | 3 |
    """
    heads = " | ".join(column.head or " " for column in table.columns)
    marks = "|".join("---:" if column.is_number else "---" for column in table.columns)
    lines = [f"| {heads} |", f"|{marks}|"]
    empty = " | " * (len(table.columns) - 1)
    for row in table.rows:
        if row.heading:
            lines.append(f"| **{escaped(row.heading)}** {empty.rstrip()} |")
            continue
        lines.append(f"| {' | '.join(map(escaped, row.cells))} |")
        lines += [f"| {escaped(said)} {empty.rstrip()} |" for said in row.beneath]
    return "\n".join(lines)


def finding_markdown(found: Finding) -> str:
    """Return a finding as an item of a list."""
    lines = [f"- **{found.severity}** `{found.code}` {escaped(plain(found.what))}"]
    lines += [f"  - {escaped(plain(line.strip()))}" for line in found.shows]
    lines += [f"  - try: {escaped(plain(found.fix))}"] if found.fix else []
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Return text in which nothing is a mark: what looks like code becomes code.

    >>> escaped("layers.*.up ×8"), escaped("a `b` | c"), escaped("12.5 GB")
    ('`layers.*.up` ×8', 'a \\\\`b\\\\` \\\\| c', '12.5 GB')
    """
    if text[:2] in ("+ ", "- ", "~ "):  # what a comparison begins with would be a list
        return f"`{text[0]}` {escaped(text[2:])}"
    if not _MARKS.search(text):
        return text
    word, space, rest = text.partition(" ")
    if "`" in text or _MARKS.search(rest):
        return _MARKS.sub(r"\\\1", text)
    return "`" + word.replace("|", r"\|") + "`" + space + rest
