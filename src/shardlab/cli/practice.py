"""`shardlab practice`: exercises one command at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shardlab.cli.practice_run import run, submit
from shardlab.cli.problem_argument import chosen as chosen_problem
from shardlab.cli.problem_argument import near

if TYPE_CHECKING:
    from shardlab.course.hints import Hint

_CATALOGUE = click.option(
    "--catalogue",
    "catalogue",
    metavar="DIR",
    help="A catalogue of your own, in the place of shardlab's.",
)
_PROBLEM = click.argument("problem", required=False)
_FOLDER = click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where your file goes.  [default: ./shardlab-practice]",
)


@click.group("practice")
def command() -> None:
    """Solve problems, judged on many devices.

    PROBLEM is a name from `practice list`, its number there, or your file; without it, the one that
    you started last. `shardlab learn` does all of this on one screen.
    """


command.add_command(run)
command.add_command(submit)


@command.command("list")
@_CATALOGUE
@click.option("--json", "as_json", is_flag=True, help="Print plain data.")
def list_(catalogue: str | None, as_json: bool) -> None:
    """Show all problems, what you have solved, and what comes next."""
    from shardlab.cli.course_tables import course_lines
    from shardlab.cli.outputs import show_lines
    from shardlab.course.workbook import open_workbook

    steps = open_workbook(catalogue).course()
    if as_json:
        click.echo(json.dumps([step.to_json() for step in steps], indent=2))
        return
    show_lines(lambda width: course_lines(steps, width))


@command.command()
@_PROBLEM
@_CATALOGUE
def show(problem: str | None, catalogue: str | None) -> None:
    """Show a problem's page."""
    from shardlab.cli.outputs import show_lines
    from shardlab.course.statement_text import statement_lines
    from shardlab.course.workbook import open_workbook

    text = chosen_problem(open_workbook(catalogue), problem).page
    show_lines(lambda width: statement_lines(text, width))


@command.command()
@_PROBLEM
@_CATALOGUE
@_FOLDER
@click.option("--force", is_flag=True, help="Replace a file that is there; it is kept beside.")
def start(problem: str | None, catalogue: str | None, folder: Path | None, force: bool) -> None:
    """Write a problem's starter into a file of your own. Without PROBLEM: the next one."""
    from shardlab.course.progress import next_problem
    from shardlab.course.workbook import open_workbook

    book = open_workbook(catalogue)
    coming = problem or next_problem(book.catalogue, book.record.progress()) or book.current()
    chosen = book.problem(coming)
    path, kept = book.start(chosen, folder, force=force)
    if kept:
        click.echo(f"Your file is kept as {near(kept)}", err=True)
    click.echo(near(path))
    words = f"{chosen.slug} --catalogue {catalogue}" if catalogue else chosen.slug
    click.echo(
        f"Show the task: shardlab practice show {words}\n"
        f"Try it:        shardlab practice run {words}\n"
        f"Hand it in:    shardlab practice submit {words}",
        err=True,
    )


@command.command()
@_PROBLEM
@_CATALOGUE
@_FOLDER
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def reset(problem: str | None, catalogue: str | None, folder: Path | None, yes: bool) -> None:
    """Put a problem's starter back; your file is kept beside it."""
    from shardlab.course.solution_file import solution_file_missing
    from shardlab.course.workbook import open_workbook

    book = open_workbook(catalogue)
    chosen = chosen_problem(book, problem)
    path = book.path(chosen.slug, folder)
    if not (path.exists() or book.record.of(chosen.slug).path):
        raise solution_file_missing(path, chosen.slug)
    if path.exists() and not yes:
        click.confirm(f"Put the starter in the place of {near(path)}?", abort=True, err=True)
    path, kept = book.start(chosen, path.parent, force=True)
    if kept:
        click.echo(f"Your file is kept as {near(kept)}", err=True)
    click.echo(near(path))


@command.command()
@_PROBLEM
@_CATALOGUE
@click.option("--all", "is_all", is_flag=True, help="Only those you have taken, from the first.")
def hint(problem: str | None, catalogue: str | None, is_all: bool) -> None:
    """Show the next hint: each gives away a little more."""
    from shardlab.course.hints import count_hints_used, next_hint
    from shardlab.course.workbook import open_workbook

    book = open_workbook(catalogue)
    chosen = chosen_problem(book, problem)
    if is_all:
        for taken in count_hints_used(book.record, chosen):
            _print_hint(taken)
        return
    coming = next_hint(book.record, chosen)
    if coming is None:
        click.echo("This problem has no hints.")
    else:
        _print_hint(coming)


def _print_hint(one: Hint) -> None:
    from shardlab.cli.outputs import show_lines
    from shardlab.course.statement_text import statement_lines

    show_lines(
        lambda width: statement_lines(f"## Hint {one.number} of {one.of}\n\n{one.text}", width)
    )


@command.command()
@_PROBLEM
@_CATALOGUE
def solution(problem: str | None, catalogue: str | None) -> None:
    """Show the solution: after a pass, or when it is asked for a second time."""
    from shardlab.course.hints import request_solution
    from shardlab.course.workbook import open_workbook

    book = open_workbook(catalogue)
    chosen = chosen_problem(book, problem)
    text = request_solution(book.record, chosen)
    if text is None:
        n_left = len(chosen.hints) - book.record.of(chosen.slug).hints
        more = f" There are {n_left} hints that you have not seen." if n_left > 0 else ""
        click.echo(f"'{chosen.slug}' is not solved yet.{more} Ask again to see the solution.")
        click.get_current_context().exit(1)
    click.echo(text, nl=False)


@command.command()
@_PROBLEM
@_CATALOGUE
@click.option("--source", "number", type=int, metavar="N", help="Print the answer of number N.")
@click.option("--json", "as_json", is_flag=True, help="Print plain data.")
def history(problem: str | None, catalogue: str | None, number: int | None, as_json: bool) -> None:
    """Show what was judged, runs and submissions, of all problems or of one."""
    from shardlab.cli.course_tables import history_lines
    from shardlab.cli.outputs import show_lines
    from shardlab.course.workbook import open_workbook

    book = open_workbook(catalogue)
    if number is not None:
        click.echo(book.record.source(number), nl=False)
        return
    kept = book.record.submissions(book.problem(problem).slug if problem else None)
    if as_json:
        click.echo(json.dumps([each.to_json() for each in kept], indent=2))
    elif not kept:
        click.echo("Nothing was run or handed in yet.")
    else:
        show_lines(lambda width: history_lines(kept, book.catalogue.slugs, width))


@command.command()
@click.argument("file", metavar="FILE", default="-")
@_CATALOGUE
def export(file: str, catalogue: str | None) -> None:
    """Write your progress and every submission to FILE.

    A name that ends in .zip holds each answer as a file beside the data; any other is JSON, and -
    is the terminal.
    """
    from shardlab.course.export import export_data, write_zip
    from shardlab.course.workbook import open_workbook
    from shardlab.errors import FolderUnwritable

    record = open_workbook(catalogue).record
    if file == "-":
        click.echo(json.dumps(export_data(record), indent=2))
        return
    try:
        if file.endswith(".zip"):
            write_zip(record, Path(file))
        else:
            Path(file).write_text(json.dumps(export_data(record), indent=2) + "\n", "utf-8")
    except OSError as error:
        raise FolderUnwritable(
            f"The export cannot be written: {error.strerror or error}.",
            where=file,
            fix="a file in a folder that is there and may be written.",
        ) from None
    click.echo(f"wrote {file} ({'zip' if file.endswith('.zip') else 'JSON'})", err=True)
