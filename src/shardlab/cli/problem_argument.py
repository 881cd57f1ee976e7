"""The problem that a command is about; one that the person did not name is named to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from shardlab.catalogue.problem import Problem
    from shardlab.course.workbook import Workbook


def chosen(book: Workbook, name: str | None, *, quiet: bool = False) -> Problem:
    """Return the problem of a name; without one, the current problem, and say which that is."""
    problem = book.problem(name)
    if name is None and not quiet:
        if book.record.latest() == problem.slug:
            told = f"{problem.slug}, started last: {near(book.path(problem.slug))}"
        else:
            told = f"{problem.slug}, which comes first: nothing was started yet"
        click.echo(told, err=True)
    return problem


def near(path: Path) -> str:
    """Return a path as short as it can be from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
