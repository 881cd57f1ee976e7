"""Where a report goes: to the terminal, and into files of several kinds."""

from __future__ import annotations

import json
import linecache
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardlab.findings.source import SourceLocation

if TYPE_CHECKING:
    from shardlab.render.terminal import Line

# "-" is the terminal, and then holds this one thing only.
TERMINAL = "-"


def write_all(files: Mapping[str, tuple[str | None, Callable[[], str]]]) -> bool:
    """Write each output that was asked for; say whether the terminal was used up by one.

    `files` has, for each option, the place given and what makes the text.
    """
    asked = {option: (to, make) for option, (to, make) in files.items() if to is not None}
    on_terminal = [option for option, (to, _) in asked.items() if to == TERMINAL]
    if len(on_terminal) > 1:
        raise click.UsageError(
            f"{' and '.join(on_terminal)} cannot both go to the terminal: give one a file."
        )
    for option, (to, make) in asked.items():
        _write(option, str(to), make().rstrip("\n") + "\n")
    return bool(on_terminal)


def check_places(**places: str | None) -> None:
    """Refuse two outputs to one place, or a folder that is not there, before the long work."""
    options = [f"--{name}" for name, to in places.items() if to == TERMINAL]
    if len(options) > 1:
        raise click.UsageError(
            f"{' and '.join(options)} cannot both go to the terminal: give one a file."
        )
    for name, to in places.items():
        if to and to != TERMINAL and not Path(to).parent.is_dir():
            raise click.UsageError(f"--{name} {to}: there is no folder {str(Path(to).parent)!r}.")
    _check_apart(places)


def _check_apart(places: Mapping[str, str | None]) -> None:
    """Refuse two outputs to one file, of which only the last would stay."""
    first: dict[str, str] = {}
    for name, to in places.items():
        if not to or to == TERMINAL or (os.path.exists(to) and not os.path.isfile(to)):
            continue
        other = first.setdefault(os.path.realpath(to), name)
        if other != name:
            raise click.UsageError(f"--{other} and --{name} cannot both be written to {to}.")


def _write(option: str, to: str, text: str) -> None:
    if to == TERMINAL:
        echo(text, nl=False)
        return
    from shardlab._files.atomic_write import write_atomically

    try:
        write_atomically(Path(to), text)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        said = error.strerror if isinstance(error, OSError) else None
        raise click.UsageError(f"{option} {to}: {said or error}") from None
    click.echo(f"wrote {to}", err=True)


def echo(text: str, *, nl: bool = True) -> None:
    """Print to standard output; a full disk is told in a line, a reader that has gone ends it."""
    if sys.stdout is None:  # it was closed before we began: nobody wants to read this
        return
    try:
        click.echo(text, nl=nl)
        sys.stdout.flush()
    except BrokenPipeError:  # click ends quietly
        raise
    except OSError as error:
        # What is still in the buffer would fail once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise click.UsageError(f"standard output: {error.strerror or error}") from None


def json_text(data: Any) -> str:
    return json.dumps(data, indent=2)


def page(title: str, bodies: Iterable[str]) -> str:
    """Return pieces of HTML as one page that needs nothing beside it."""
    from shardlab.render.sheet import STYLE

    body = "\n".join(bodies)
    style = STYLE if STYLE in body else ""  # of a piece; in a page it belongs to the head
    body = body.replace(STYLE, "").strip()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} - shardlab</title>{style}</head>\n<body>\n{body}\n</body></html>"
    )


def show(text: Callable[[int], str], coloured: Callable[[int], Any]) -> None:
    """Print in colour and as wide as the terminal, or plain where there is none.

    rich is loaded only where it is used.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        echo(text(_PLAIN_WIDTH))
        return
    from rich.console import Console

    width = shutil.get_terminal_size().columns
    Console(width=width).print(coloured(width))


_PLAIN_WIDTH = 100


def show_lines(lines: Callable[[int], Iterable[Line]]) -> None:
    """Print drawn lines in colour, or plain where there is no terminal.

    A line that is too wide goes on in the next row: of code, nothing may be cut off.
    """
    from shardlab.render.terminal import lines_rich, lines_text

    if sys.stdout is None or not sys.stdout.isatty():
        echo(lines_text(lines(_PLAIN_WIDTH)))
        return
    from rich.console import Console

    width = shutil.get_terminal_size().columns
    text = lines_rich(lines(width))
    text.overflow = "ignore"
    Console(width=width).print(text, soft_wrap=True)


def excerpt(source: SourceLocation) -> str:
    """Return the text of a source line, empty where the file is not at hand."""
    return linecache.getline(source.file, source.line).strip() if source.line else ""
