"""A problem's page, `statement.md`: its sections, blocks and links, each with its line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

HEADINGS = (
    "Why this matters",
    "The idea",
    "Worked example",
    "Pitfalls",
    "The task",
    "Inputs and output",
    "Examples",
)
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, what is in it, and the line of its fence."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Section:
    """What stands under one heading; `line` is that of the heading."""

    heading: str
    lines: tuple[str, ...]
    line: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Return the fenced blocks in order."""
        found, began = [], None
        for number, line in enumerate(self.lines, self.line + 1):
            if line.startswith("```") and began is None:
                began = number
            elif line.startswith("```") and began is not None:
                inside = self.lines[began - self.line : number - self.line - 1]
                language = self.lines[began - self.line - 1].removeprefix("```").strip()
                found.append(Block(language, "".join(f"{each}\n" for each in inside), began))
                began = None
        return tuple(found)

    def block(self, *languages: str) -> Block | None:
        """Return the first block in one of these languages."""
        return next((block for block in self.blocks if block.language in languages), None)

    @property
    def bullets(self) -> tuple[tuple[int, str], ...]:
        """Return each bullet with its line, the lines that belong to it joined."""
        found: list[tuple[int, str]] = []
        for number, line in enumerate(self.lines, self.line + 1):
            if line.startswith("- "):
                found.append((number, line.removeprefix("- ")))
            elif found and line.startswith("  "):
                found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        return tuple(found)


@dataclass(frozen=True)
class Page:
    """A page: its title and its sections in order.

    >>> page = read_page("# One sum\\n\\n## The idea\\n\\n- All add.\\n")
    >>> page.title, page.section("The idea").bullets
    ('One sum', ((5, 'All add.'),))
    """

    title: str
    sections: tuple[Section, ...]
    n_lines: int

    def section(self, heading: str) -> Section:
        """Return a section; an empty one where the page has none of that name."""
        found = (each for each in self.sections if each.heading == heading)
        return next(found, Section(heading, (), 0))

    @property
    def links(self) -> Iterator[tuple[int, str]]:
        """Yield what the page links to, with the line."""
        for section in self.sections:
            for number, line in enumerate(section.lines, section.line + 1):
                yield from ((number, target) for _, target in _LINK.findall(line))


def read_page(text: str) -> Page:
    """Return the sections of a page. Lines that start with # inside of a block are no headings."""
    lines = text.splitlines()
    title = lines[0].removeprefix("# ").strip() if lines and lines[0].startswith("# ") else ""
    starts, is_code = [], False
    for number, line in enumerate(lines):
        is_code ^= line.startswith("```")
        if line.startswith("## ") and not is_code:
            starts.append(number)
    ends = [*starts[1:], len(lines)]
    sections = tuple(
        Section(lines[start].removeprefix("## ").strip(), tuple(lines[start + 1 : end]), start + 1)
        for start, end in zip(starts, ends, strict=False)
    )
    return Page(title, sections, len(lines))


def linked(text: str) -> list[str]:
    """Return what a piece of text links to.

    >>> linked("It hangs ([no_psum](wrong/no_psum.py)).")
    ['wrong/no_psum.py']
    """
    return [target for _, target in _LINK.findall(text)]
