"""Parses a problem's page, `statement.md`: sections, blocks and links, each with its line."""

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
    """A fenced block: its language, its text, and the line of its fence."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class Section:
    """The text under one heading; `line` is that of the heading."""

    heading: str
    lines: tuple[str, ...]
    line: int

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Return the fenced blocks in order."""
        blocks, start = [], None
        for number, line in enumerate(self.lines, self.line + 1):
            if not line.startswith("```"):
                continue
            if start is None:
                start = number
                continue
            text = "".join(
                f"{code}\n" for code in self.lines[start - self.line : number - self.line - 1]
            )
            language = self.lines[start - self.line - 1].removeprefix("```").strip()
            blocks.append(Block(language, text, start))
            start = None
        return tuple(blocks)

    def first_block(self, *languages: str) -> Block | None:
        """Return the first block in one of these languages."""
        return next((block for block in self.blocks if block.language in languages), None)

    @property
    def bullets(self) -> tuple[tuple[int, str], ...]:
        """Return each bullet with its line number, continuation lines appended."""
        bullets: list[tuple[int, str]] = []
        for number, line in enumerate(self.lines, self.line + 1):
            if line.startswith("- "):
                bullets.append((number, line.removeprefix("- ")))
            elif bullets and line.startswith("  "):
                first_line, text = bullets[-1]
                bullets[-1] = (first_line, f"{text} {line.strip()}")
        return tuple(bullets)


@dataclass(frozen=True)
class Page:
    """A page: its title and its sections, in order.

    >>> page = parse_page("# One sum\\n\\n## The idea\\n\\n- All add.\\n")
    >>> page.title, page.find_section("The idea").bullets
    ('One sum', ((5, 'All add.'),))
    """

    title: str
    sections: tuple[Section, ...]
    n_lines: int

    def find_section(self, heading: str) -> Section:
        """Return a section; an empty one if the page has no such heading."""
        matches = (section for section in self.sections if section.heading == heading)
        return next(matches, Section(heading, (), 0))

    @property
    def links(self) -> Iterator[tuple[int, str]]:
        """Yield the target of each link, with its line."""
        for section in self.sections:
            for number, line in enumerate(section.lines, section.line + 1):
                yield from ((number, target) for _, target in _LINK.findall(line))


def parse_page(text: str) -> Page:
    """Return the sections of a page. Lines that start with # inside a block are not headings."""
    lines = text.splitlines()
    title = lines[0].removeprefix("# ").strip() if lines and lines[0].startswith("# ") else ""
    starts, is_code = [], False
    for number, line in enumerate(lines):
        # A fence opens and closes a block alike.
        is_code ^= line.startswith("```")
        if line.startswith("## ") and not is_code:
            starts.append(number)
    ends = [*starts[1:], len(lines)]
    sections = tuple(
        Section(lines[start].removeprefix("## ").strip(), tuple(lines[start + 1 : end]), start + 1)
        for start, end in zip(starts, ends, strict=False)
    )
    return Page(title, sections, len(lines))


def find_links(text: str) -> list[str]:
    """Return the targets of the links in a text.

    >>> find_links("It hangs ([no_psum](wrong/no_psum.py)).")
    ['wrong/no_psum.py']
    """
    return [target for _, target in _LINK.findall(text)]
