"""What a program prints while it is recorded: the first part of it, made printable."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import jax

from shardlab._text.printable import printable_lines

MAX_CHARACTERS = 20_000
_MORE = "\n... and more"


class PrintedOutput:
    """The beginning of what was printed; a program may print without end."""

    def __init__(self) -> None:
        self._stream = _FirstCharacters()

    @contextlib.contextmanager
    def capture(self, *, is_repeated: bool = False) -> Iterator[None]:
        """Collect what is printed within this block; what is printed once more is dropped."""
        stream = _FirstCharacters() if is_repeated else self._stream
        with contextlib.redirect_stdout(stream):
            try:
                yield
            finally:
                jax.effects_barrier()  # jax.debug.print runs in another thread

    def clear(self) -> None:
        """Forget what was printed: the program starts again."""
        self._stream.seek(0)
        self._stream.truncate()

    @property
    def text(self) -> str:
        """Return the text without control characters, at most `MAX_CHARACTERS`."""
        text = printable_lines(self._stream.getvalue())
        if len(text) <= MAX_CHARACTERS:
            return text
        return text[: MAX_CHARACTERS - len(_MORE)] + _MORE


class _FirstCharacters(io.StringIO):
    def write(self, text: str) -> int:
        n_missing = MAX_CHARACTERS + 1 - self.tell()
        if n_missing > 0:
            super().write(text[:n_missing])
        return len(text)
