"""A hand-written scanner for meshes, specs and shapes, whose errors mark the exact position.

>>> text = Scanner("data=2,model=", kind="mesh")
>>> text.take_name(), text.take("="), text.take_int()
('data', True, 2)
>>> raise text.error("Expected ',' here.", fix="write data=2,model=4.")
Traceback (most recent call last):
    ...
shardlab.errors.InvalidSyntax: [layout.invalid_syntax] Expected ',' here.
  where: the mesh text
         data=2,model=
               ^
  try:   write data=2,model=4.
"""

from __future__ import annotations

import re

from shardlab.errors import InvalidSyntax

_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[^\W\d][\w.\-]*")
_INT = re.compile(r"[+-]?\d+(?:_\d+)*")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_WORD = re.compile(r"[^\s,()\[\]=:]+|.", re.DOTALL)
# int() rejects more than 4,300 digits with an error about sys.set_int_max_str_digits, which does
# not help the user; no real size has a hundred digits.
_MAX_DIGITS = 100


class Scanner:
    """A cursor over text: each `take...` skips spaces, then consumes the token if it is next."""

    def __init__(self, source: str, *, kind: str) -> None:
        self.source = source
        self.kind = kind
        self.position = 0
        self.last_start = 0  # where the last token began, so that an error can point back at it

    def take(self, token: str) -> bool:
        """Consume `token` if it is next."""
        if not self.next_is(token):
            return False
        self._advance(len(token))
        return True

    def next_is(self, token: str) -> bool:
        """Return whether `token` is next, without consuming it."""
        self._skip_space()
        return self.source.startswith(token, self.position)

    def take_name(self) -> str | None:
        """Consume a bare or quoted name."""
        if (quoted := self._match(_QUOTED)) is not None:
            return quoted[1:-1]
        return self._match(_NAME)

    def take_int(self) -> int | None:
        """Consume an integer; underscores are allowed, as in Python."""
        digits = self._match(_INT)
        if digits is None:
            return None
        if len(digits) > _MAX_DIGITS:
            raise self.error(
                f"The number has {len(digits):,} digits.",
                fix="write a size that an array can have.",
                back=True,
            )
        return int(digits)

    @property
    def at_end(self) -> bool:
        self._skip_space()
        return self.position == len(self.source)

    def error(self, message: str, *, fix: str, back: bool = False) -> InvalidSyntax:
        """Return an error that points at the next word, or with `back` at the last token."""
        self._skip_space()
        if back:
            # The token may be followed by the spaces just skipped: do not mark those.
            start, stop = self.last_start, self.position
            stop = start + max(1, len(self.source[start:stop].rstrip()))
        else:
            start = self.position
            word = _WORD.match(self.source, start)
            stop = word.end() if word else start + 1
        return syntax_error(message, self.source, start, stop, kind=self.kind, fix=fix)

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self._skip_space()
        match = pattern.match(self.source, self.position)
        if match is None:
            return None
        self._advance(len(match[0]))
        return match[0]

    def _advance(self, n: int) -> None:
        self.last_start = self.position
        self.position += n

    def _skip_space(self) -> None:
        space = _SPACE.match(self.source, self.position)
        assert space is not None
        self.position = space.end()


def syntax_error(
    message: str, source: str, start: int, stop: int, *, kind: str, fix: str
) -> InvalidSyntax:
    """Return an `InvalidSyntax` whose `where` marks characters start to stop with `^^^`."""
    line, start, stop = _excerpt_line(source, start, stop)
    marks = " " * start + "^" * (stop - start)
    where = f"the {kind} text\n         {line}\n         {marks}"
    return InvalidSyntax(message, where=where, fix=fix)


def _excerpt_line(source: str, start: int, stop: int, width: int = 72) -> tuple[str, int, int]:
    """Return one line of `source` around start to stop, and both positions in that line."""
    flat = "".join(map(_visible_character, source))
    # Half of the width for the marks, so that the excerpt always contains their start and end.
    stop = min(stop, start + width // 2)
    first = max(0, min(start - width // 2, len(flat) - width))
    last = first + width
    head, tail = ("…" if first else ""), ("…" if last < len(flat) else "")
    shift = len(head) - first
    return head + flat[first:last] + tail, start + shift, stop + shift


def _visible_character(character: str) -> str:
    if character.isprintable():
        return character
    # One column for one character, so that the marks stay below the characters they mark.
    return " " if character.isspace() else "�"
