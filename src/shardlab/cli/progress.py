"""A line on the terminal that says what is being done, once it takes longer than a second."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

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
