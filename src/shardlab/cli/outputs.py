"""Where results go: files, standard output, the terminal; and the progress line."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardlab.findings.source import SourceLocation

if TYPE_CHECKING:
    from shardlab.render.sheet import Section
    from shardlab.render.terminal import Line

STDOUT = "-"  # as a file name; standard output then holds nothing else
_PIPE_WIDTH = 100  # columns, if standard output is not a terminal
_PROGRESS_DELAY = 1.0  # seconds before the progress line appears

# Of each option: the file that the user named, if any, and what renders the text.
Outputs = Mapping[str, tuple[str | None, Callable[[], str]]]


def write_outputs(outputs: Outputs) -> bool:
    """Write each output that was requested; return whether one of them went to standard output."""
    requests = {
        option: (file, render) for option, (file, render) in outputs.items() if file is not None
    }
    # Also checked here: some commands have no long work to check before.
    _reject_two_on_stdout([option for option, (file, _) in requests.items() if file == STDOUT])
    for option, (file, render) in requests.items():
        _write_output(option, str(file), render().rstrip("\n") + "\n")
    return any(file == STDOUT for file, _ in requests.values())


def check_destinations(**files: str | None) -> None:
    """Reject two outputs to one file, or a folder that does not exist, before the long work.

    Keywords are the names of the options without their dashes.
    """
    _reject_two_on_stdout([f"--{name}" for name, file in files.items() if file == STDOUT])
    for name, file in files.items():
        if file and file != STDOUT and not Path(file).parent.is_dir():
            folder = str(Path(file).parent)
            raise click.UsageError(f"--{name} {file}: the folder {folder!r} does not exist.")
    first_option: dict[str, str] = {}
    for name, file in files.items():
        # A device or a pipe, such as /dev/stderr, may receive several outputs.
        if not file or file == STDOUT or (os.path.exists(file) and not os.path.isfile(file)):
            continue
        option = first_option.setdefault(os.path.realpath(file), name)
        if option != name:
            raise click.UsageError(f"--{option} and --{name} cannot both be written to {file}.")


def _reject_two_on_stdout(options: list[str]) -> None:
    if len(options) > 1:
        raise click.UsageError(
            f"{' and '.join(options)} cannot both be written to standard output: name a file."
        )


def _write_output(option: str, file: str, text: str) -> None:
    if file == STDOUT:
        print_result(text, newline=False)
        return
    from shardlab._files.atomic_write import write_atomically

    try:
        write_atomically(Path(file), text)
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = error.strerror if isinstance(error, OSError) else None
        raise click.UsageError(f"{option} {file}: {reason or error}") from None
    click.echo(f"wrote {file}", err=True)


def print_result(text: str, *, newline: bool = True) -> None:
    """Print to standard output; a full disk is a usage error, a closed pipe ends the command."""
    if sys.stdout is None:  # closed before we started
        return
    try:
        click.echo(text, nl=newline)
        sys.stdout.flush()
    except BrokenPipeError:  # click exits silently
        raise
    except OSError as error:
        # Python flushes its buffer once more at exit, which would fail again with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise click.UsageError(f"standard output: {error.strerror or error}") from None


def to_json_text(data: Any) -> str:
    return json.dumps(data, indent=2)


def html_page(title: str, bodies: Iterable[str]) -> str:
    """Return HTML fragments as one self-contained page."""
    from shardlab.render.sheet import STYLE

    body = "\n".join(bodies)
    # Each fragment carries the style, for notebooks; a page has it once, in its head.
    style = STYLE if STYLE in body else ""
    body = body.replace(STYLE, "").strip()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        # The browser then has dark paper for those who prefer it; fragments take its colors.
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)} - shardlab</title>{style}</head>\n"
        '<body style="margin:1.5em auto;padding:0 1.2em;max-width:82em">\n'
        f"{body}\n</body></html>"
    )


def show_report(render_text: Callable[[int], str], render_rich: Callable[[int], Any]) -> None:
    """Print in color and at the width of the terminal, or plain text into a pipe."""
    if sys.stdout is None or not sys.stdout.isatty():
        print_result(render_text(_PIPE_WIDTH))
        return
    from rich.console import Console  # slow to import, so only for a terminal

    width = shutil.get_terminal_size().columns
    Console(width=width).print(render_rich(width))


def show_lines(render_lines: Callable[[int], Iterable[Line]]) -> None:
    """Print lines in color, or plain text into a pipe.

    A line that is too wide continues in the next row: no code may be truncated.
    """
    from shardlab.render.terminal import lines_rich, lines_text

    if sys.stdout is None or not sys.stdout.isatty():
        print_result(lines_text(render_lines(_PIPE_WIDTH)))
        return
    from rich.console import Console

    width = shutil.get_terminal_size().columns
    text = lines_rich(render_lines(width))
    text.overflow = "ignore"
    Console(width=width).print(text, soft_wrap=True)


def show_section(section: Section) -> None:
    """Print a section after an empty line."""
    from shardlab.render.sheet import section_lines

    show_lines(lambda width: [[], *section_lines(section, width)])


def read_source_line(source: SourceLocation) -> str:
    """Return the text of a source line; empty if the file cannot be read."""
    return linecache.getline(source.file, source.line).strip() if source.line else ""


@contextlib.contextmanager
def show_progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with each step; without a terminal it does nothing."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda step: None
        return
    line = _ProgressLine()
    try:
        yield line.update
    finally:
        line.remove()


class _ProgressLine:
    """A line that appears after a second, and disappears before anything else is printed."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._step = "starting"
        self._status: Any = None

    def update(self, step: str) -> None:
        """Show a step with the elapsed time; an empty one updates only the time."""
        self._step = step or self._step
        seconds = time.monotonic() - self._start
        if seconds < _PROGRESS_DELAY:
            return
        text = f"{self._step} ({seconds:.0f} s)"
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)

    def remove(self) -> None:
        if self._status is not None:
            self._status.stop()
