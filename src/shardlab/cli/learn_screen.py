"""The terminal as `learn` uses it: keys one at a time, lines one after the other.

No screen of its own and no cursor games: what was said stays in the scrollback, and a terminal
that can do nothing but print is enough. The terminal's settings are put back however it ends.
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

# An arrow or function key comes as several characters, which are none of ours.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])")


class Screen:
    """A terminal in which single keys are read. Use it as a context."""

    def __init__(self) -> None:
        for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
            if stream is None or not stream.isatty():
                raise NoTerminal(
                    f"The {name} is not a terminal, so that no keys can be read.",
                    where="shardlab learn",
                    fix="shardlab learn --once, which judges the current answer once and ends.",
                )
        self._keys = sys.stdin.fileno()
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._woken, self._waker = os.pipe()
        self._before: list[Any] = termios.tcgetattr(self._keys)
        self._handlers: dict[int, Any] = {}
        self._has_status = False
        # A dumb terminal cannot go back to the start of a line.
        self._is_dumb = os.environ.get("TERM", "dumb") in ("dumb", "")
        self._has_colour = not (self._is_dumb or os.environ.get("NO_COLOR"))
        self.is_at_end = False  # the terminal has gone

    def __enter__(self) -> Screen:
        for fd in (self._woken, self._waker):
            os.set_blocking(fd, False)
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, _leave)
        self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._pause)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a box that the encoding lacks ends nothing
        self._set()
        return self

    def __exit__(self, *_: object) -> None:
        self.clear_status()
        self._restore()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._woken)
        os.close(self._waker)

    def wake(self) -> None:
        """End the waiting for keys; called from another thread."""
        with contextlib.suppress(OSError):
            os.write(self._waker, b".")

    def keys(self, seconds: float) -> list[str]:
        """Wait for keys so long, and return those that were pressed."""
        ready, _, _ = select.select([self._keys, self._woken], [], [], seconds)
        if self._woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 1024)
        if self._keys not in ready:
            return []
        try:
            data = os.read(self._keys, 1024)
        except OSError:  # the connection was cut
            data = b""
        self.is_at_end = not data
        return keys_in(self._decoder.decode(data))

    def show(self, lines: Callable[[int], Iterable[Line]]) -> None:
        """Print lines drawn for the present width, in colour where there is colour."""
        from shardlab.cli.outputs import show_lines

        self.clear_status()
        show_lines(lines)
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Print words, folded to the width; a path is never broken."""
        self.clear_status()
        width = max(shutil.get_terminal_size().columns, 20)
        for line in text.split("\n"):
            indent = line[: len(line) - len(line.lstrip())]
            folded = wrap(
                line,
                width,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
            click.echo("\n".join(folded), color=self._has_colour)

    def status(self, text: str) -> None:
        """Write a line that the next one replaces; a dumb terminal is spared it."""
        if self._is_dumb:
            return
        room = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[K{text[:room]}")
        sys.stdout.flush()
        self._has_status = True

    def clear_status(self) -> None:
        if self._has_status:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()
            self._has_status = False

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Lend the terminal to another program, as it was before."""
        self.clear_status()
        self._restore()
        # Ctrl-C is the other program's. A handler, which it does not inherit as it would SIG_IGN.
        ctrl_c = signal.signal(signal.SIGINT, lambda number, frame: None)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, ctrl_c)
            self._set()

    def _set(self) -> None:
        # Keys at once and unseen; Ctrl-C and Ctrl-Z as ever. What was typed ahead is not lost.
        tty.setcbreak(self._keys, termios.TCSADRAIN)

    def _restore(self) -> None:
        with contextlib.suppress(termios.error):  # the terminal has gone
            termios.tcsetattr(self._keys, termios.TCSADRAIN, self._before)

    def _pause(self, number: int, frame: FrameType | None) -> None:
        """Ctrl-Z: leave the terminal as it was, stop, and take it up again after fg."""
        self._restore()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._pause)
        self._set()


def keys_in(text: str) -> list[str]:
    """Return the keys that were pressed.

    >>> keys_in("h\\x1b[Ar\\x1b")
    ['h', 'r', '\\x1b']
    """
    return list(_SEQUENCE.sub("", text))


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
