"""What is wrong with a problem, in one sentence with its place."""

from __future__ import annotations

from dataclasses import dataclass

# Every rule of the audit, and what it wants.
RULES = {
    "problem": "problem.toml and reference.py can be loaded",
    "reference.inputs": "inputs(draw) gives the arguments of the call, and no others",
    "reference.draw": "the same seed gives the same inputs, and expected leaves them as they are",
    "tracks.unlisted": "tracks.toml lists the problem",
    "files.stray": "the folder holds the files of a problem and no others",
    "text.encoding": "files are UTF-8",
    "text.end": "files end with one line break",
    "text.long_line": "lines have at most 120 characters",
    "text.spaces": "no tabs, no spaces at the end of a line",
    "text.unfinished": "no TODO, FIXME, TBD or XXX is left",
    "page.title": "the page begins with the title of problem.toml",
    "page.headings": "the seven headings, in order",
    "page.empty": "something stands under each of them",
    "page.length": "50 to 120 lines",
    "page.picture": "the idea has a ```text drawing or a ```layout block",
    "page.layout": "each line of a ```layout block is an array, a spec and a mesh that fit",
    "page.fence": "every block is closed",
    "page.language": "blocks are python, text, layout or pycon",
    "page.worked_example": "a ```python block and then a ```text block with what it prints",
    "page.examples": "the examples are a ```pycon block",
    "page.pitfalls": "there are pitfalls, as bullets",
    "page.pitfall": "each ends in a link to the wrong answer that proves it",
    "page.link": "links lead to a file",
    "hints.headings": "three or four hints, numbered",
    "hints.empty": "something stands under each of them",
    "code.syntax": "programs are Python",
    "code.function": "programs define every function that is called",
    "code.arguments": "starter and solution take the arguments of the call, in its order",
    "code.experimental": "programs use jax.shard_map, nothing of jax.experimental",
    "wrong.too_few": "at least three wrong answers",
    "wrong.header": "a wrong answer begins with # CODE: sentence, or # CODE cause: sentence",
    "wrong.unlinked": "the page or the hints link to every wrong answer",
    "examples.worked": "the worked example prints just what the page says",
    "examples.doctest": "the examples give what the page says, with solution.py",
    "examples.hidden": "no example has the inputs of a hidden case",
    "starter.passes": "the starter fails",
    "solution.fails": "the solution passes every case",
    "wrong.unproven": "cases that a wrong answer fails have its code alone, the first its cause",
    "judge": "the judge itself does not fail",
}


@dataclass(frozen=True)
class Fault:
    """One thing to mend.

    >>> print(Fault("page.picture", "The idea has no picture.", "statement.md", 9))
    statement.md:9  The idea has no picture.  [page.picture]
    """

    rule: str
    what: str
    file: str = ""
    line: int = 0
    shows: tuple[str, ...] = ()  # lines shown beneath

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        first = f"{place}  {self.what}  [{self.rule}]" if place else f"{self.what}  [{self.rule}]"
        return "\n".join([first, *(f"    {line}" for line in self.shows)])
