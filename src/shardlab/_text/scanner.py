"""Text read by hand, so that an error can point at the exact place.

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
# int() refuses more than 4,300 digits with an error about sys.set_int_max_str_digits, which
# would mean nothing to a reader; no size anybody can mean has a hundred.
_MAX_DIGITS = 100


class Scanner:
    """A cursor over text: each `take...` skips spaces, then takes the thing or leaves it."""

    def __init__(self, source: str, *, kind: str) -> None:
        self.source = source
        self.kind = kind
        self.position = 0
        self.taken = 0  # where the last taken thing began, so that an error may point back at it

    def take(self, token: str) -> bool:
        """Take `token` if it comes next."""
        if not self.next_is(token):
            return False
        self._advance(len(token))
        return True

    def next_is(self, token: str) -> bool:
        """Tell whether `token` comes next, without taking it."""
        self._skip_space()
        return self.source.startswith(token, self.position)

    def take_name(self) -> str | None:
        """Take a bare or quoted name."""
        if (quoted := self._match(_QUOTED)) is not None:
            return quoted[1:-1]
        return self._match(_NAME)

    def take_int(self) -> int | None:
        """Take a whole number; underscores are allowed, as in Python."""
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

    def error(self, what: str, *, fix: str, back: bool = False) -> InvalidSyntax:
        """Return an error that points at the next word, or `back` at the thing last taken."""
        self._skip_space()
        if back:
            start, stop = self.taken, self.position
            stop = start + max(1, len(self.source[start:stop].rstrip()))
        else:
            start = self.position
            word = _WORD.match(self.source, start)
            stop = word.end() if word else start + 1
        return syntax_error(what, self.source, start, stop, kind=self.kind, fix=fix)

    def _match(self, pattern: re.Pattern[str]) -> str | None:
        self._skip_space()
        found = pattern.match(self.source, self.position)
        if found is None:
            return None
        self._advance(len(found[0]))
        return found[0]

    def _advance(self, n: int) -> None:
        self.taken = self.position
        self.position += n

    def _skip_space(self) -> None:
        space = _SPACE.match(self.source, self.position)
        assert space is not None
        self.position = space.end()


def syntax_error(
    what: str, source: str, start: int, stop: int, *, kind: str, fix: str
) -> InvalidSyntax:
    """Return a `InvalidSyntax` whose `where` shows `source` with `^^^` under characters start to stop."""
    shown, start, stop = _window(source, start, stop)
    marks = " " * start + "^" * (stop - start)
    return InvalidSyntax(
        what, where=f"the {kind} text\n         {shown}\n         {marks}", fix=fix
    )


def _window(source: str, start: int, stop: int, width: int = 72) -> tuple[str, int, int]:
    """Return one line of `source` around the place, with the place's new bounds."""
    flat = "".join(each if each.isprintable() else _instead(each) for each in source)
    stop = min(stop, start + width // 2)
    left = max(0, min(start - width // 2, len(flat) - width))
    right = left + width
    head, tail = ("…" if left else ""), ("…" if right < len(flat) else "")
    shift = len(head) - left
    return head + flat[left:right] + tail, start + shift, stop + shift


def _instead(letter: str) -> str:
    """Return what stands for a character that cannot be shown, so that marks stay below theirs."""
    return " " if letter.isspace() else "�"
