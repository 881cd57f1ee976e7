"""What can be seen of a problem without running it: files, headings, links, first lines.

What is wrong with a problem, in one sentence with its place.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardlab.catalogue.problem import PROBLEM_FILES, Problem
from shardlab.course.statement_page import HEADINGS, Page, linked, read_page
from shardlab.course.wrong_submissions import read_claim
from shardlab.errors import LabError
from shardlab.sharding.layout import layout
from shardlab.sharding.shape import parse_array

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


@dataclass(frozen=True, kw_only=True)
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


MAX_LINE = 120
PAGE_LINES = range(50, 121)
MIN_WRONG = 3
N_HINTS = (3, 4)
LANGUAGES = ("python", "text", "layout", "pycon")
_ENDS_IN_WRONG = re.compile(r"\]\((wrong/[^)\s]+)\)\)?\.?$")
_LAYOUT = re.compile(r"(\S+) +(\S.*?) +(\S+)")
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|TBD)\b|\blorem ipsum\b")


def lint(problem: Problem) -> list[Fault]:
    """Return everything that can be seen to be wrong with a problem's files."""
    faults = [*_files(problem), *_text(problem)]
    if any(fault.rule == "text.encoding" for fault in faults):
        return faults
    page = read_page(problem.text("statement.md"))
    return [
        *faults,
        *_headings(problem, page),
        *_picture(page),
        *_blocks(page),
        *_pitfalls(problem, page),
        *_links(problem, page),
        *_hints(problem),
        *_functions(problem),
        *_wrong(problem),
    ]


def _files(problem: Problem) -> Iterator[Fault]:
    """Find files that do not belong to a problem."""
    known = {*PROBLEM_FILES, "problem.toml"}
    for path in sorted(problem.folder.rglob("*")):
        name = path.relative_to(problem.folder).as_posix()
        is_wrong = path.parent.name == "wrong" and path.suffix == ".py"
        if path.is_file() and name not in known and not is_wrong and "__pycache__" not in name:
            yield Fault(rule="files.stray", what="The file is no part of a problem.", file=name)


def _text(problem: Problem) -> Iterator[Fault]:
    """Find what is wrong with the lines of any file."""
    for path in _texts(problem):
        name = path.relative_to(problem.folder).as_posix()
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            yield Fault(rule="text.encoding", what="The file is not UTF-8.", file=name)
            continue
        if not text.endswith("\n") or text.endswith("\n\n"):
            yield Fault(
                rule="text.end", what="The file does not end with one line break.", file=name
            )
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > MAX_LINE:
                what = f"The line has {len(line)} characters, at most {MAX_LINE} are allowed."
                yield Fault(rule="text.long_line", what=what, file=name, line=number)
            if line != line.rstrip() or "\t" in line:
                yield Fault(
                    rule="text.spaces",
                    what="The line has a tab or ends with spaces.",
                    file=name,
                    line=number,
                )
            if _UNFINISHED.search(line):
                yield Fault(
                    rule="text.unfinished",
                    what="The line says that it is unfinished.",
                    file=name,
                    line=number,
                )


def _texts(problem: Problem) -> list[Path]:
    return [
        *(problem.folder / name for name in ("problem.toml", *PROBLEM_FILES)),
        *problem.wrong,
    ]


# ----------------------------------------------------------------------------------------- the page


def _headings(problem: Problem, page: Page) -> Iterator[Fault]:
    file = "statement.md"
    if page.title != problem.title:
        what = f"The page begins with {page.title!r}; the title is {problem.title!r}."
        yield Fault(rule="page.title", what=what, file=file, line=1)
    found = tuple(section.heading for section in page.sections)
    if found != HEADINGS:
        what = f"The headings are {', '.join(found) or 'none'}; they must be {', '.join(HEADINGS)}."
        yield Fault(rule="page.headings", what=what, file=file)
        return
    for section in page.sections:
        if not section.text.strip():
            yield Fault(
                rule="page.empty",
                what=f"'{section.heading}' is empty.",
                file=file,
                line=section.line,
            )
    if page.n_lines not in PAGE_LINES:
        least, most = PAGE_LINES[0], PAGE_LINES[-1]
        what = f"The page has {page.n_lines} lines; a page has {least} to {most}."
        yield Fault(rule="page.length", what=what, file=file)


def _picture(page: Page) -> Iterator[Fault]:
    idea = page.section("The idea")
    if idea.line and idea.block("text", "layout") is None:
        what = "The idea has no picture: a ```text drawing or a ```layout block."
        yield Fault(rule="page.picture", what=what, file="statement.md", line=idea.line)
    for block in (block for section in page.sections for block in section.blocks):
        if block.language == "layout":
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                wrong = _layout_line(line)
                if wrong:
                    yield Fault(rule="page.layout", what=wrong, file="statement.md", line=number)


def _layout_line(line: str) -> str:
    """Return why a line such as `f32[8,6] P('data',None) data=2,model=4` is no layout."""
    parts = _LAYOUT.fullmatch(line)
    if parts is None:
        return "The line is not array, spec and mesh, such as f32[8,6] P('data',None) data=2."
    try:
        shape, dtype = parse_array(parts[1])
        layout(shape, parts[2], parts[3], dtype)
    except LabError as error:
        return error.what
    return ""


def _blocks(page: Page) -> Iterator[Fault]:
    """Find blocks that the audit would not run, and sections that lack theirs."""
    for section in page.sections:
        fences = sum(line.startswith("```") for line in section.lines)
        if fences % 2:
            what = f"A block of '{section.heading}' is not closed."
            yield Fault(rule="page.fence", what=what, file="statement.md", line=section.line)
        for block in section.blocks:
            if block.language not in LANGUAGES:
                what = f"A block is {block.language!r}; it must be {', '.join(LANGUAGES)}."
                yield Fault(rule="page.language", what=what, file="statement.md", line=block.line)
    worked = page.section("Worked example")
    kinds = [block.language for block in worked.blocks if block.language in ("python", "text")]
    if worked.line and (not kinds or kinds != ["python", "text"] * (len(kinds) // 2)):
        what = "The worked example must be a ```python block and a ```text block of what it prints."
        yield Fault(rule="page.worked_example", what=what, file="statement.md", line=worked.line)
    examples = page.section("Examples")
    calls = examples.block("pycon")
    if examples.line and (calls is None or ">>> " not in calls.text):
        what = "The examples must be a ```pycon block."
        yield Fault(rule="page.examples", what=what, file="statement.md", line=examples.line)


def _pitfalls(problem: Problem, page: Page) -> Iterator[Fault]:
    section = page.section("Pitfalls")
    for number, bullet in section.bullets:
        if _ENDS_IN_WRONG.search(bullet) is None:
            what = "The pitfall does not end in a link to the wrong answer that proves it."
            yield Fault(rule="page.pitfall", what=what, file="statement.md", line=number)
    if section.line and not section.bullets:
        yield Fault(
            rule="page.pitfalls",
            what="There are no pitfalls.",
            file="statement.md",
            line=section.line,
        )
    told = {target for _, target in page.links} | set(linked(problem.text("hints.md")))
    for path in problem.wrong:
        name = f"wrong/{path.name}"
        if name not in told:
            yield Fault(
                rule="wrong.unlinked",
                what="Nothing on the page or in the hints links to it.",
                file=name,
            )


def _links(problem: Problem, page: Page) -> Iterator[Fault]:
    for number, target in page.links:
        if re.match(r"https?://", target):
            continue
        if not (problem.folder / target.partition("#")[0]).is_file():
            yield Fault(
                rule="page.link", what=f"There is no {target}.", file="statement.md", line=number
            )


def _hints(problem: Problem) -> Iterator[Fault]:
    text = problem.text("hints.md")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    wanted = [f"## Hint {number}" for number in range(1, len(headings) + 1)]
    if headings != wanted or len(headings) not in N_HINTS:
        what = f"The headings are {headings}; they must be '## Hint 1' to '## Hint 3' or 4."
        yield Fault(rule="hints.headings", what=what, file="hints.md")
    if not all(problem.hints):
        yield Fault(rule="hints.empty", what="A hint is empty.", file="hints.md")


# ---------------------------------------------------------------------------------------- the code


def _functions(problem: Problem) -> Iterator[Fault]:
    """Find programs that do not define what is called, or with other arguments."""
    for path in (problem.folder / "starter.py", problem.folder / "solution.py", *problem.wrong):
        name = path.relative_to(problem.folder).as_posix()
        source = path.read_text("utf-8")
        try:
            tree = ast.parse(source)
        except SyntaxError as error:
            if not source.startswith("# CE"):
                yield Fault(
                    rule="code.syntax",
                    what=f"It is not Python: {error.msg}.",
                    file=name,
                    line=error.lineno or 0,
                )
            continue
        for line in _experimental(tree):
            yield Fault(
                rule="code.experimental", what="It imports jax.experimental.", file=name, line=line
            )
        if not source.startswith("# CE"):
            yield from _signatures(problem, tree, name)


def _signatures(problem: Problem, tree: ast.Module, name: str) -> Iterator[Fault]:
    defined = {each.name: each for each in tree.body if isinstance(each, ast.FunctionDef)}
    assigned = {
        target.id
        for each in tree.body
        if isinstance(each, ast.Assign)
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    for part in problem.parts:
        function = defined.get(part.function)
        if function is None:
            if part.function not in assigned:
                yield Fault(
                    rule="code.function", what=f"It does not define {part.function}.", file=name
                )
            continue
        takes = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        if tuple(takes[: len(part.arguments)]) != part.arguments and name.startswith("s"):
            what = f"{part.function} takes {', '.join(takes)}; the judge calls {part.call}."
            yield Fault(rule="code.arguments", what=what, file=name, line=function.lineno)


def _experimental(tree: ast.Module) -> Iterable[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        if any(module.startswith("jax.experimental") for module in modules):
            yield node.lineno


def _wrong(problem: Problem) -> Iterator[Fault]:
    if len(problem.wrong) < MIN_WRONG:
        what = f"There are {len(problem.wrong)} wrong answers; at least {MIN_WRONG} are wanted."
        yield Fault(rule="wrong.too_few", what=what, file="wrong")
    for path in problem.wrong:
        claim = read_claim(path.read_text("utf-8"))
        if isinstance(claim, str):
            yield Fault(rule="wrong.header", what=claim, file=f"wrong/{path.name}", line=1)
