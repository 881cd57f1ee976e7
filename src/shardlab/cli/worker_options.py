"""The options that `trace` and `check` share, and how both ask the worker.

A line on the terminal that says what is being done, once it takes longer than a second.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

ARGUMENTS_HELP = """
    \b
    The arguments of a function come from
      shapes              'f32[1024,4096]' 'bf16[8,128]', or with a spec 'f32[8,4]@data,None'
      --args NAME         a tuple in the same file, or a function that returns one
      the file's own      a tuple or function <function>_args, or example_args
    In a tuple, text such as "f32[8,4]" stands for an array of that shape.
"""


def program_options(command: Command) -> Command:
    """Give a command the program, its arguments and the limits it runs under."""
    for option in reversed((*_OPTIONS, *LIMIT_OPTIONS)):
        command = option(command)
    return command


def limit_options(command: Command) -> Command:
    """Give a command the limits that a person's file runs under."""
    for option in reversed(LIMIT_OPTIONS):
        command = option(command)
    return command


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.argument("program"),
    click.argument("args", nargs=-1, type=click.UNPROCESSED),
    click.option(
        "--args", "args_from", metavar="NAME", help="What gives the arguments, in the same file."
    ),
    click.option(
        "--devices",
        "-n",
        type=click.IntRange(min=1),
        metavar="N",
        help="How many devices the program sees while it is loaded. Without it: enough for "
        "--mesh, or as many as it asks for, or 8.",
    ),
    click.option(
        "--json",
        "json_to",
        metavar="FILE",
        help="Write plain data to FILE; - writes it to the terminal, and nothing else.",
    ),
    click.option("--html", "html_to", metavar="FILE", help="Write the report as a page."),
)
LIMIT_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--time-limit",
        type=click.FloatRange(min=0, min_open=True),
        default=120.0,
        show_default=True,
        metavar="SECONDS",
        help="Stop the program after this, with exit code 124.",
    ),
    click.option(
        "--memory-limit",
        metavar="BYTES",
        help="What the program may allocate, such as 4GiB. Without it: the machine's memory.",
    ),
    click.option("--quiet", "-q", is_flag=True, help="Show no progress."),
)


def ask(
    job: Mapping[str, Any], *, time_limit: float, memory_limit: str | None, quiet: bool
) -> dict[str, Any]:
    """Return the worker's answer to a job; Ctrl-C ends the worker too, with exit code 130."""
    from shardlab._text.units import parse_bytes
    from shardlab.execution.worker_client import run_worker

    n_bytes = _machine_memory() if memory_limit is None else parse_bytes(memory_limit)
    try:
        with progress(quiet=quiet) as tell:
            return run_worker({**job, "memory_limit": n_bytes}, seconds=time_limit, tell=tell)
    except KeyboardInterrupt:
        click.echo("interrupted; the program was stopped", err=True)
        raise click.exceptions.Exit(130) from None


def raise_failure(answer: Mapping[str, Any]) -> None:
    """Raise what ended a script, once all that was seen of it until then is shown."""
    from shardlab.execution.worker_client import error_from_worker

    if answer.get("failure"):
        raise error_from_worker(answer["failure"])


def _machine_memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on every system
        return 16 * 2**30


_PATIENCE = 1.0


@contextlib.contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function to call with each new step; nothing is shown where nobody watches."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda text: None
        return
    line = _Line()
    try:
        yield line.tell
    finally:
        line.clear()


class _Line:
    """The line: shown late, and taken away before anything else is printed."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._text = "starting"
        self._status: Any = None

    def tell(self, text: str) -> None:
        self._text = text or self._text
        seconds = time.monotonic() - self._began
        if seconds < _PATIENCE:
            return
        shown = f"{self._text} ({seconds:.0f} s)"
        if self._status is None:
            from rich.console import Console

            self._status = Console(stderr=True).status(shown)
            self._status.start()
        self._status.update(shown)

    def clear(self) -> None:
        if self._status is not None:
            self._status.stop()
