"""The terminal of `learn`: single keys in, lines out.

No alternate screen and no cursor movement: the output stays in the scrollback, and any terminal is
good enough. The terminal's settings are restored however the program ends.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import select
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator
from textwrap import wrap
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from shardlab.errors import NoTerminal

if TYPE_CHECKING:
    from shardlab.render.terminal import Line

# An arrow or function key sends several characters; none of them is a command.
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])")


class Screen:
    """A terminal in which single keys are read. Use it as a context manager."""

    def __init__(self) -> None:
        for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
            if stream is None or not stream.isatty():
                raise NoTerminal(
                    f"Standard {name} is not a terminal, so keys cannot be read.",
                    where="shardlab learn",
                    fix="shardlab learn --once judges the current solution file and exits.",
                )
        self._input = sys.stdin.fileno()
        # A key may be several bytes, split over two reads.
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._wake_reader, self._wake_writer = os.pipe()
        self._saved_settings: list[Any] = termios.tcgetattr(self._input)
        self._handlers: dict[int, Any] = {}
        self._has_status = False
        # A dumb terminal cannot overwrite a line.
        self._is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "")
        self._has_color = not (self._is_dumb or os.environ.get("NO_COLOR"))
        self.is_closed = False  # the terminal was closed

    def __enter__(self) -> Screen:
        for fd in (self._wake_reader, self._wake_writer):
            os.set_blocking(fd, False)
        # As exceptions, so that __exit__ restores the terminal.
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, _exit_on_signal)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._suspend)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A box-drawing character that the encoding lacks must not raise.
            sys.stdout.reconfigure(errors="replace")
        self._set_cbreak()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear_status()
        self._restore_settings()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def wake(self) -> None:
        """Interrupt `read_keys`; called from another thread."""
        with contextlib.suppress(OSError):
            # Non-blocking: a full pipe means that a wake-up is pending already.
            os.write(self._wake_writer, b".")

    def read_keys(self, seconds: float) -> list[str]:
        """Wait at most `seconds`, and return the keys that were pressed."""
        # The wake pipe lets a finished judgement interrupt the select.
        ready, _, _ = select.select([self._input, self._wake_reader], [], [], seconds)
        if self._wake_reader in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_reader, 1024)
        if self._input not in ready:
            return []
        try:
            data = os.read(self._input, 1024)
        except OSError:  # the connection was lost
            data = b""
        self.is_closed = not data
        return split_keys(self._decoder.decode(data))

    def show_lines(self, render_lines: Callable[[int], Iterable[Line]]) -> None:
        """Print lines rendered for the current width, in color if the terminal has it."""
        from shardlab.cli.outputs import show_lines

        self.clear_status()
        show_lines(render_lines)
        sys.stdout.flush()

    def print_text(self, text: str) -> None:
        """Print text, wrapped to the width; a path is never broken."""
        self.clear_status()
        width = max(shutil.get_terminal_size().columns, 20)
        for line in text.split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            rows = wrap(
                line,
                width,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            click.echo("\n".join(rows), color=self._has_color)

    def show_status(self, text: str) -> None:
        """Write a line that the next output replaces; not on a dumb terminal."""
        if self._is_dumb:
            return
        columns = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[K{text[:columns]}")
        sys.stdout.flush()
        self._has_status = True

    @property
    def page_height(self) -> int | None:
        """Rows that fit on one screen, with some for the status; None on a dumb terminal."""
        # A dumb terminal has no status line to announce that there is more.
        return None if self._is_dumb else max(shutil.get_terminal_size().lines - 4, 8)

    def clear_status(self) -> None:
        if self._has_status:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()
            self._has_status = False

    @contextlib.contextmanager
    def lend_terminal(self) -> Iterator[None]:
        """Restore the terminal for another program that runs in it."""
        self.clear_status()
        self._restore_settings()
        # Ctrl-C is for the other program. A handler, because a child would inherit SIG_IGN.
        old_handler = signal.signal(signal.SIGINT, lambda number, frame: None)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, old_handler)
            self._set_cbreak()

    def _set_cbreak(self) -> None:
        # Keys arrive unbuffered and without echo; Ctrl-C and Ctrl-Z still send signals. TCSADRAIN
        # keeps what was typed ahead.
        tty.setcbreak(self._input, termios.TCSADRAIN)

    def _restore_settings(self) -> None:
        with contextlib.suppress(termios.error):  # the terminal was closed
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._saved_settings)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: restore the terminal, stop, and set it up again after fg."""
        self._restore_settings()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        # Stops here until the shell sends SIGCONT.
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._suspend)
        self._set_cbreak()


def split_keys(text: str) -> list[str]:
    """Return the keys of what the terminal sent.

    >>> split_keys("h\\x1b[Ar\\x1b")
    ['h', 'r', '\\x1b']
    """
    return list(_ESCAPE_SEQUENCE.sub("", text))


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
