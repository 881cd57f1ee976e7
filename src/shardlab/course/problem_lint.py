"""Lints a problem without running it: files, headings, links, signatures, first lines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardlab.catalogue.problem import PROBLEM_FILES, Problem, leads_out_of
from shardlab.course.devices_block import DevicesBlockError, parse_devices_block
from shardlab.course.formula import formula_mathml
from shardlab.course.prediction import parse_prediction
from shardlab.course.statement_page import HEADINGS, Page, find_links, parse_page
from shardlab.course.wrong_submissions import parse_header
from shardlab.errors import LabError
from shardlab.sharding.layout import layout
from shardlab.sharding.shape import parse_array

# Every rule of the audit, and its requirement; docs/write-a-problem.md has the same table.
RULES = {
    "problem": "problem.toml and reference.py can be loaded",
    "reference.inputs": "inputs(draw) returns the arguments of the call, and no others",
    "reference.draw": "the same seed gives the same inputs, and expected does not modify them",
    "tracks.unlisted": "tracks.toml lists the problem",
    "files.stray": "the folder contains the files of a problem and no others",
    "text.encoding": "files are UTF-8",
    "text.end": "files end with one newline",
    "text.long_line": "lines have at most 120 characters",
    "text.spaces": "no tabs, no spaces at the end of a line",
    "text.unfinished": "no TODO, FIXME, TBD or XXX",
    "page.title": "the heading of the page is the title in problem.toml",
    "page.headings": "the seven headings, in order",
    "page.empty": "no section is empty",
    "page.length": "50 to 120 lines, without ```predict blocks",
    "page.picture": "the idea has a ```devices or ```layout block, or a ```text drawing",
    "page.layout": "each line of a ```layout block is an array, a spec and a mesh that fit",
    "page.devices": "each line of a ```devices block fits its mesh, and copies are equal",
    "page.fence": "every block is closed",
    "page.language": "blocks are python, text, layout, devices, pycon, math or predict",
    "page.math": "each line of a ```math block is a Python expression with a notation",
    "page.predict": "a ```predict block has a question, its answer and a reason",
    "page.worked_example": "a ```python block and then a ```text block with what it prints",
    "page.examples": "the examples are a ```pycon block",
    "page.pitfalls": "there are pitfalls, as bullets",
    "page.pitfall": "each ends in a link to the wrong submission that demonstrates it",
    "page.link": "links point to existing files",
    "hints.headings": "three or four hints, numbered",
    "hints.empty": "no hint is empty",
    "code.syntax": "programs are valid Python",
    "code.function": "programs define every function that is called",
    "code.arguments": "starter and solution have the parameters of the call, in order",
    "code.experimental": "programs use jax.shard_map, nothing of jax.experimental",
    "wrong.too_few": "at least three known-wrong submissions",
    "wrong.header": "a wrong submission begins with # CODE: sentence, or # CODE cause: sentence",
    "wrong.unlinked": "the page or the hints link to every wrong submission",
    "examples.worked": "the worked example prints exactly what the page shows",
    "examples.doctest": "the examples give what the page shows, with solution.py",
    "examples.hidden": "no example has the inputs of a hidden case",
    "starter.passes": "the starter fails",
    "solution.fails": "the solution passes every case",
    "wrong.unproven": "a wrong submission fails with its code only, and first with its cause",
    "judge": "the judge itself does not fail",
    "mutants.survive": "the hidden cases of every seed kill every mutant that is not equivalent",
    "audit.unused": "every exception in audit.toml is needed",
    "inputs.fixed": "an argument depends on the seed, not only on the case and its mesh",
    "inputs.few": "a number has three values or more in the cases of a seed, a flag or text two",
    "inputs.shape": "every dimension of an array has several sizes on one mesh",
    "inputs.size_one": "every dimension of an array has size 1 on a device in some case",
    "inputs.ties": "an array of floats has equal elements in some case",
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One violation of a rule.

    >>> print(Fault(rule="page.picture", message="No picture.", file="statement.md", line=9))
    statement.md:9  No picture.  [page.picture]
    """

    rule: str
    message: str
    file: str = ""
    line: int = 0
    details: tuple[str, ...] = ()  # lines shown beneath

    def __str__(self) -> str:
        location = f"{self.file}:{self.line}" if self.line else self.file
        summary = f"{self.message}  [{self.rule}]"
        first_line = f"{location}  {summary}" if location else summary
        return "\n".join([first_line, *(f"    {line}" for line in self.details)])


MAX_LINE = 120
PAGE_LINES = range(50, 121)
MIN_WRONG_SUBMISSIONS = 3
N_HINTS = (3, 4)
LANGUAGES = ("python", "text", "layout", "devices", "pycon", "math", "predict")
_ENDS_IN_WRONG_LINK = re.compile(r"\]\((wrong/[^)\s]+)\)\)?\.?$")
_LAYOUT = re.compile(r"(\S+) +(\S.*?) +(\S+)")
_UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|TBD)\b|\blorem ipsum\b")


def lint_problem(problem: Problem) -> list[Fault]:
    """Return the faults of a problem's files that can be found without running them."""
    faults = [*_lint_files(problem), *_lint_text(problem)]
    # The other rules read the files as text.
    if any(fault.rule == "text.encoding" for fault in faults):
        return faults
    page = parse_page(problem.read_text("statement.md"))
    return [
        *faults,
        *_lint_headings(problem, page),
        *_lint_pictures(page),
        *_lint_notations(page),
        *_lint_blocks(page),
        *_lint_pitfalls(problem, page),
        *_lint_links(problem, page),
        *_lint_hints(problem),
        *_lint_functions(problem),
        *_lint_wrong_submissions(problem),
    ]


def _lint_files(problem: Problem) -> Iterator[Fault]:
    """Find files that do not belong to a problem."""
    expected_files = {*PROBLEM_FILES, "problem.toml", "audit.toml"}
    for path in sorted(problem.folder.rglob("*")):
        name = path.relative_to(problem.folder).as_posix()
        is_submission = path.parent.name == "wrong" and path.suffix == ".py"
        is_known = name in expected_files or is_submission or "__pycache__" in name
        if path.is_file() and not is_known:
            yield Fault(rule="files.stray", message="The file is not part of a problem.", file=name)


def _lint_text(problem: Problem) -> Iterator[Fault]:
    """Find lines that no file may have."""
    for path in _text_files(problem):
        name = path.relative_to(problem.folder).as_posix()
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            yield Fault(rule="text.encoding", message="The file is not UTF-8.", file=name)
            continue
        if not text.endswith("\n") or text.endswith("\n\n"):
            yield Fault(
                rule="text.end", message="The file does not end with one newline.", file=name
            )
        for number, line in enumerate(text.split("\n"), 1):
            if len(line) > MAX_LINE:
                message = f"The line has {len(line)} characters; the maximum is {MAX_LINE}."
                yield Fault(rule="text.long_line", message=message, file=name, line=number)
            if line != line.rstrip() or "\t" in line:
                yield Fault(
                    rule="text.spaces",
                    message="The line has a tab or ends with spaces.",
                    file=name,
                    line=number,
                )
            if _UNFINISHED.search(line):
                yield Fault(
                    rule="text.unfinished",
                    message="The line is marked as unfinished.",
                    file=name,
                    line=number,
                )


def _text_files(problem: Problem) -> list[Path]:
    return [
        *(problem.folder / name for name in ("problem.toml", *PROBLEM_FILES)),
        *problem.wrong_submissions,
    ]


# ----------------------------------------------------------------------------------------- the page


def _lint_headings(problem: Problem, page: Page) -> Iterator[Fault]:
    file = "statement.md"
    if page.title != problem.title:
        message = f"The heading is {page.title!r}; the title is {problem.title!r}."
        yield Fault(rule="page.title", message=message, file=file, line=1)
    headings = tuple(section.heading for section in page.sections)
    if headings != HEADINGS:
        names = ", ".join(headings) or "none"
        message = f"The headings are {names}; they must be {', '.join(HEADINGS)}."
        yield Fault(rule="page.headings", message=message, file=file)
        return
    for section in page.sections:
        if not section.text.strip():
            yield Fault(
                rule="page.empty",
                message=f"'{section.heading}' is empty.",
                file=file,
                line=section.line,
            )
    # A question is answered, not read: it does not make a page longer.
    blocks = [block for section in page.sections for block in section.blocks]
    questions = [block for block in blocks if block.language == "predict"]
    n_lines = page.n_lines - sum(block.text.count("\n") + 3 for block in questions)
    if n_lines not in PAGE_LINES:
        shortest, longest = PAGE_LINES[0], PAGE_LINES[-1]
        message = f"The page has {n_lines} lines; it must have {shortest} to {longest}."
        yield Fault(rule="page.length", message=message, file=file)


def _lint_pictures(page: Page) -> Iterator[Fault]:
    idea = page.find_section("The idea")
    if idea.line and idea.first_block("devices", "layout", "text") is None:
        message = "The idea has no picture: a ```devices, ```layout or ```text block."
        yield Fault(rule="page.picture", message=message, file="statement.md", line=idea.line)
    for block in (block for section in page.sections for block in section.blocks):
        if block.language == "layout":
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                problem_text = _check_layout_line(line)
                if problem_text:
                    yield Fault(
                        rule="page.layout", message=problem_text, file="statement.md", line=number
                    )


def _check_layout_line(line: str) -> str:
    """Return an error message for a line that is not an array, a spec and a mesh."""
    parts = _LAYOUT.fullmatch(line)
    if parts is None:
        return (
            "The line is not an array, a spec and a mesh, such as f32[8,6] P('data',None) data=2."
        )
    try:
        shape, dtype = parse_array(parts[1])
        layout(shape, parts[2], parts[3], dtype)
    except LabError as error:
        return error.what
    return ""


def _lint_notations(page: Page) -> Iterator[Fault]:
    """Find formulas, questions and pictures of devices that cannot be read."""
    for block in (block for section in page.sections for block in section.blocks):
        if block.language == "devices":
            try:
                parse_devices_block(block.text)
            except DevicesBlockError as error:
                reason = f"{error}" if str(error).endswith("?") else f"{error}."
                yield Fault(
                    rule="page.devices",
                    message=f"The picture of devices cannot be drawn: {reason}",
                    file="statement.md",
                    line=block.line + error.line,
                )
        if block.language == "predict":
            try:
                parse_prediction(block.text)
            except ValueError as error:
                message = f"The question cannot be read: {error}."
                yield Fault(
                    rule="page.predict", message=message, file="statement.md", line=block.line
                )
        elif block.language == "math":
            for number, line in enumerate(block.text.splitlines(), block.line + 1):
                try:
                    formula_mathml(line)
                except ValueError as error:
                    message = f"The formula cannot be read: {error}."
                    yield Fault(rule="page.math", message=message, file="statement.md", line=number)


def _lint_blocks(page: Page) -> Iterator[Fault]:
    """Find blocks that the audit would not run, and sections without their block."""
    for section in page.sections:
        # An unclosed block would swallow the following sections, whose code would not run.
        fences = sum(line.startswith("```") for line in section.lines)
        if fences % 2:
            message = f"A block of '{section.heading}' is not closed."
            yield Fault(rule="page.fence", message=message, file="statement.md", line=section.line)
        for block in section.blocks:
            if block.language not in LANGUAGES:
                message = f"A block is {block.language!r}; it must be {', '.join(LANGUAGES)}."
                yield Fault(
                    rule="page.language", message=message, file="statement.md", line=block.line
                )
    worked = page.find_section("Worked example")
    kinds = [block.language for block in worked.blocks if block.language in ("python", "text")]
    if worked.line and (not kinds or kinds != ["python", "text"] * (len(kinds) // 2)):
        message = (
            "The worked example must be a ```python block and a ```text block with its output."
        )
        yield Fault(
            rule="page.worked_example", message=message, file="statement.md", line=worked.line
        )
    examples = page.find_section("Examples")
    calls = examples.first_block("pycon")
    if examples.line and (calls is None or ">>> " not in calls.text):
        message = "The examples must be a ```pycon block."
        yield Fault(rule="page.examples", message=message, file="statement.md", line=examples.line)


def _lint_pitfalls(problem: Problem, page: Page) -> Iterator[Fault]:
    section = page.find_section("Pitfalls")
    for number, bullet in section.bullets:
        if _ENDS_IN_WRONG_LINK.search(bullet) is None:
            message = (
                "The pitfall does not end in a link to the wrong submission that demonstrates it."
            )
            yield Fault(rule="page.pitfall", message=message, file="statement.md", line=number)
    if section.line and not section.bullets:
        yield Fault(
            rule="page.pitfalls",
            message="There are no pitfalls.",
            file="statement.md",
            line=section.line,
        )
    links = {target for _, target in page.links}
    links |= set(find_links(problem.read_text("hints.md")))
    for path in problem.wrong_submissions:
        name = f"wrong/{path.name}"
        if name not in links:
            yield Fault(
                rule="wrong.unlinked",
                message="Neither the page nor the hints link to it.",
                file=name,
            )


def _lint_links(problem: Problem, page: Page) -> Iterator[Fault]:
    for number, target in page.links:
        # Network access would make the audit depend on other hosts.
        if re.match(r"https?://", target):
            continue
        path = problem.folder / target.partition("#")[0]
        # A file elsewhere does not count: the audit must not say which files this machine has.
        if leads_out_of(path, problem.folder) or not path.is_file():
            yield Fault(
                rule="page.link",
                message=f"The link target {target} does not exist.",
                file="statement.md",
                line=number,
            )


def _lint_hints(problem: Problem) -> Iterator[Fault]:
    text = problem.read_text("hints.md")
    headings = [line for line in text.splitlines() if line.startswith("#")]
    numbered = [f"## Hint {number}" for number in range(1, len(headings) + 1)]
    if headings != numbered or len(headings) not in N_HINTS:
        message = f"The headings are {headings}; they must be '## Hint 1' to '## Hint 3' or 4."
        yield Fault(rule="hints.headings", message=message, file="hints.md")
    if not all(problem.hints):
        yield Fault(rule="hints.empty", message="A hint is empty.", file="hints.md")


# ---------------------------------------------------------------------------------------- the code


def _lint_functions(problem: Problem) -> Iterator[Fault]:
    """Find programs without the functions of the calls, or with other parameters."""
    own_programs = [problem.folder / name for name in ("starter.py", "solution.py")]
    for path in (*own_programs, *problem.wrong_submissions):
        name = path.relative_to(problem.folder).as_posix()
        source = path.read_text("utf-8")
        try:
            tree = ast.parse(source)
        except (ValueError, RecursionError, MemoryError) as error:
            # A NUL byte, or nested too deep for the parser.
            message = f"It is not valid Python: {error}."
            yield Fault(rule="code.syntax", message=message, file=name)
            continue
        except SyntaxError as error:
            # A submission that must fail with CE (compile error) need not be valid Python.
            if not source.startswith("# CE"):
                yield Fault(
                    rule="code.syntax",
                    message=f"It is not valid Python: {error.msg}.",
                    file=name,
                    line=error.lineno or 0,
                )
            continue
        for line in _experimental_imports(tree):
            yield Fault(
                rule="code.experimental",
                message="It imports jax.experimental.",
                file=name,
                line=line,
            )
        if not source.startswith("# CE"):
            yield from _lint_signatures(problem, tree, name)


def _lint_signatures(problem: Problem, tree: ast.Module, name: str) -> Iterator[Fault]:
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    # `f = jax.jit(...)` defines a function too; its parameters are not known here.
    variables = {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for part in problem.parts:
        function = functions.get(part.function)
        if function is None:
            if part.function not in variables:
                yield Fault(
                    rule="code.function", message=f"It does not define {part.function}.", file=name
                )
            continue
        parameters = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        # A wrong submission may have any parameters: that can be its mistake.
        is_own = name in ("starter.py", "solution.py")
        if is_own and tuple(parameters[: len(part.arguments)]) != part.arguments:
            names = ", ".join(parameters)
            message = f"{part.function} has the parameters {names}; the judge calls {part.call}."
            yield Fault(rule="code.arguments", message=message, file=name, line=function.lineno)


def _experimental_imports(tree: ast.Module) -> Iterable[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        if any(module.startswith("jax.experimental") for module in modules):
            yield node.lineno


def _lint_wrong_submissions(problem: Problem) -> Iterator[Fault]:
    n_wrong = len(problem.wrong_submissions)
    if n_wrong < MIN_WRONG_SUBMISSIONS:
        message = f"There are {n_wrong} wrong submissions; the minimum is {MIN_WRONG_SUBMISSIONS}."
        yield Fault(rule="wrong.too_few", message=message, file="wrong")
    for path in problem.wrong_submissions:
        header = parse_header(path.read_text("utf-8"))
        if isinstance(header, str):
            yield Fault(rule="wrong.header", message=header, file=f"wrong/{path.name}", line=1)
