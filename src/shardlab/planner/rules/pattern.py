r"""The pattern of a rule: a regular expression of Python's `re`, read before it is used.

>>> parse_pattern(r"layers\.\d+\.up").form, parse_pattern("mlp/up").form
('.', '/')
>>> digits_alike([parse_pattern(r"layers\.\d+\.up")]), digits_alike([parse_pattern("w1")])
('0000000000', '0100000000')

People write patterns, so none may be trusted to end: `(a+)+$` takes for ever on a long path. What
is read here says which digits a pattern tells apart, and how long a search may take at worst.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from shardlab.errors import InvalidRules

MAX_LENGTH = 4096
_MAX_COUNTS = 10_000  # parts, counts multiplied out: `regex` unfolds them, into memory
_DIGITS = "0123456789"
_TOKEN = re.compile(
    r"""
    (?P<comment> \(\?\#[^)]*\) )
  | (?P<flags> \(\?[aiLmsux]+\) )
  | (?P<back> \(\?P=\w+\) | \\[1-9][0-9]?(?![0-9]) )
  | (?P<open> \((?:\?(?:[:=!>]|<[=!]|P<\w+>|[aiLmsux]*(?:-[imsx]+)?:))? )
  | (?P<odd> \(\? )
  | (?P<close> \) )
  | (?P<count> \{[0-9]+(?:,[0-9]*)?\} | \{,[0-9]*\} )
  | (?P<repeat> [*+] )
  | (?P<maybe> \? )
  | (?P<or> \| )
  | (?P<class> \[\^?\]?(?:\\.|[^\]\\])*\] )
  | (?P<coded> \\x[0-9a-fA-F]{2} | \\u[0-9a-fA-F]{4} | \\U[0-9a-fA-F]{8} | \\N\{[^}]*\} )
  | (?P<octal> \\[0-7]{1,3} )
  | (?P<escape> \\. )
  | (?P<char> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_DOUBLED = re.compile(r"(?<!\\)(?:\[|--|&&|\|\||~~)")


@dataclass(frozen=True)
class Token:
    """A piece of a pattern: its kind is the name of the group of `_TOKEN` that read it."""

    kind: str
    text: str
    start: int


@dataclass(frozen=True)
class Pattern:
    """A regular expression that `re` takes, by its text."""

    text: str

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        return tuple(
            Token(str(found.lastgroup), found[0], found.start())
            for found in _TOKEN.finditer(self.text)
        )

    @cached_property
    def form(self) -> Literal["/", ".", ""]:
        r"""The form of the path that it is searched in: with `/`, with `.`, or as it is.

        A rule with "/" means slashes and one with `\.` means dots, whatever the model has; a rule
        with both means what it says.
        """
        slash, dot = "/" in self.text, r"\." in self.text
        return "" if slash == dot else "/" if slash else "."

    @cached_property
    def digit_sets(self) -> frozenset[frozenset[str]] | None:
        """The sets of digits that single parts of it take, None where it may tell all apart.

        A part that takes all digits, or none, does not count. A back reference compares what it
        finds, and verbose mode reads text otherwise, so that nothing is told there.
        """
        found = set()
        for token in self.tokens:
            if token.kind in ("back", "odd") or (token.kind in ("flags", "open") and _x(token)):
                return None
            if token.kind in ("class", "coded", "octal", "escape", "char"):
                taken = frozenset(_taken(token.text))
                if 0 < len(taken) < len(_DIGITS):
                    found.add(taken)
        return frozenset(found)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Texts without digits that every path has in which it is found.

        >>> parse_pattern(r"layers\\.3\\..*q_proj(a|b)?").words
        ('layers.', '.', 'q_proj')
        """
        if any(each.kind in ("or", "flags", "odd") or _x(each) for each in self.tokens):
            return ()
        found, depth = [""], 0
        for token in self.tokens:
            depth += (token.kind == "open") - (token.kind == "close")
            character = token.text[-1]
            is_text = token.kind == "char" and character not in ".^$" + _DIGITS
            is_text |= token.kind == "escape" and not character.isalnum()
            if depth == 0 and is_text:
                found[-1] += character
            elif token.kind in ("repeat", "count", "maybe"):
                found[-1:] = [found[-1][:-1], ""]
            else:
                found.append("")
        return tuple(filter(None, found))

    def most_ways(self, n: int) -> float:
        """Return how many ways through it a search in n characters may try at most.

        Repeats multiply by n, alternatives add up; a group that repeats may take for ever.
        """
        sums, products = [0.0], [float(n)]
        before = ""
        for token in self.tokens:
            if token.kind in ("open", "odd"):
                sums.append(0.0)
                products.append(1.0)
            elif token.kind == "or":
                sums[-1] += products[-1]
                products[-1] = 1.0
            elif token.kind == "close" and len(sums) > 1:
                inside = sums.pop() + products.pop()
                products[-1] *= inside
            elif token.kind in ("repeat", "count"):
                products[-1] *= float("inf") if before == "close" else n
            elif token.kind == "maybe":
                products[-1] *= 2
            before = token.kind
        return sum(sums) + sum(products)

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        return re.compile(self.text)

    @cached_property
    def timed(self) -> Any:
        """The same for the module `regex`, whose searches can be stopped."""
        import regex

        braces = {"{": r"\{", "}": r"\}"}  # which mean something else to it, where no count
        return regex.compile(
            "".join(braces.get(each.text, each.text) for each in self.tokens), regex.VERSION0
        )


@lru_cache(maxsize=4096)
def parse_pattern(text: str, where: str = "") -> Pattern:
    """Return the pattern, or say at which character it cannot be read.

    >>> parse_pattern("mlp/*+?kernel")
    Traceback (most recent call last):
        ...
    shardlab.errors.InvalidRules: [plan.invalid_rules] The pattern cannot be read: multiple repeat.
      where: mlp/*+?kernel
                   ^
      try:   a regular expression of Python's re, such as mlp/.*kernel or layers\\.\\d+\\.mlp.
    """
    if len(text) > MAX_LENGTH:
        fix = f"at most {MAX_LENGTH:,} characters; two rules can share a spec."
        raise InvalidRules(f"The pattern has {len(text):,} characters.", where=where, fix=fix)
    fix = r"a regular expression of Python's re, such as mlp/.*kernel or layers\.\d+\.mlp."
    pattern = Pattern(text)
    _check_classes(pattern, where)
    try:
        re.compile(text)
    except re.error as error:
        at = error.pos if error.pos is not None else 0
        raise _wrong(f"The pattern cannot be read: {error.msg}.", text, at, where, fix) from None
    except (RecursionError, OverflowError, MemoryError) as error:
        said = str(error) or type(error).__name__
        raise _wrong(f"The pattern cannot be read: {said}.", text, 0, where, fix) from None
    _check_counts(pattern, where)
    return pattern


def digits_alike(patterns: Iterable[Pattern]) -> str:
    """Return for each digit the first one that no pattern tells apart from it.

    A search depends on single characters through the sets of them that parts of the pattern take.
    So two paths that differ in digits which are in the same sets are found by the same patterns.
    """
    sets: set[frozenset[str]] = set()
    for pattern in patterns:
        if pattern.digit_sets is None:
            return _DIGITS
        sets |= pattern.digit_sets
    signs = {digit: frozenset(each for each in sets if digit in each) for digit in _DIGITS}
    return "".join(next(d for d in _DIGITS if signs[d] == signs[digit]) for digit in _DIGITS)


@lru_cache(maxsize=4096)
def _taken(part: str) -> str:
    """Return the digits that one character, escape or class takes."""
    if len(part) == 1:
        return part if part in _DIGITS else ""
    single = re.compile(part)
    return "".join(filter(single.fullmatch, _DIGITS))


def _x(token: Token) -> bool:
    return (
        token.text.startswith("(?") and "x" in token.text.split("-")[0] and "P<" not in token.text
    )


def _check_classes(pattern: Pattern, where: str) -> None:
    """Refuse what Python warns about: it will be read otherwise one day, and `regex` does now."""
    for token in pattern.tokens:
        if token.text == "[":  # a class that does not end
            what = "The pattern cannot be read: unterminated character set."
            raise _wrong(what, pattern.text, token.start, where, r"] at its end, or \[ for the [.")
        if token.kind == "class" and (found := _DOUBLED.search(token.text, 1)):
            raise _wrong(
                f"{found[0]!r} stands inside a class of characters, where it may mean two things.",
                pattern.text,
                token.start + found.start(),
                where,
                rf"\{found[0][0]}, which means the character itself.",
            )


def _check_counts(pattern: Pattern, where: str) -> None:
    """Refuse counts that multiply to more than anybody means, as `((a{999}){999}){999}`."""
    sizes, last = [0], 0
    for token in pattern.tokens:
        if token.kind in ("open", "odd"):
            sizes[-1] += last
            sizes.append(0)
            last = 0
        elif token.kind == "close" and len(sizes) > 1:
            last += sizes.pop()
        elif token.kind == "count":
            last *= max(1, *(int(each) for each in re.findall("[0-9]+", token.text) or "1"))
        elif token.kind not in ("repeat", "maybe", "or"):
            sizes[-1] += last
            last = 1
        if sum(sizes) + last > _MAX_COUNTS:
            fix = f"counts that multiply to at most {_MAX_COUNTS:,}; + and * have no such limit."
            what = "The counts of the pattern multiply to more than a path can need."
            raise _wrong(what, pattern.text, token.start, where, fix)


def _wrong(what: str, text: str, at: int, where: str, fix: str) -> InvalidRules:
    """Return the error with a mark under the place, in the manner of `layouts.text`."""
    flat = re.sub(r"\s", " ", text)
    left = max(0, min(at - 36, len(flat) - 72))
    head = "…" if left else ""
    shown = head + flat[left : left + 72] + ("…" if left + 72 < len(flat) else "")
    marks = " " * (at - left + len(head)) + "^"
    place = f"{where}\n         " if where else ""
    return InvalidRules(what, where=f"{place}{shown}\n         {marks}", fix=fix)
