r"""Patterns of rules: regular expressions of Python's `re`, analyzed before they are searched.

>>> parse_pattern(r"layers\.\d+\.up").separator, parse_pattern("mlp/up").separator
('.', '/')
>>> equivalent_digits([parse_pattern(r"layers\.\d+\.up")]), equivalent_digits([parse_pattern("w1")])
('0000000000', '0100000000')

Users write patterns, and no pattern can be trusted to terminate: `(a+)+$` takes exponential time on
a long path. The analysis tells which digits a pattern distinguishes, so that few paths need to be
searched, and how long a search can take in the worst case.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from shardlab.errors import InvalidRules

MAX_LENGTH = 4096
# Elements of a pattern after its counts are multiplied out: `regex` expands counts in memory.
_MAX_EXPANDED = 10_000
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
# Set notation that Python reserves inside a character class (FutureWarning) and `regex` uses.
_SET_OPERATOR = re.compile(r"(?<!\\)(?:\[|--|&&|\|\||~~)")


@dataclass(frozen=True)
class Token:
    """A token of a pattern; its kind is the name of the group of `_TOKEN` that matched it."""

    kind: str
    text: str
    start: int

    @property
    def has_verbose_flag(self) -> bool:
        """Whether the token turns on verbose mode, in which whitespace does not count."""
        flags = self.text.split("-")[0]
        return self.text.startswith("(?") and "x" in flags and "P<" not in self.text


@dataclass(frozen=True)
class Pattern:
    """A regular expression that `re` accepts, by its text."""

    text: str

    @cached_property
    def tokens(self) -> tuple[Token, ...]:
        """The tokens of the pattern."""
        return tuple(
            Token(str(match.lastgroup), match[0], match.start())
            for match in _TOKEN.finditer(self.text)
        )

    @cached_property
    def separator(self) -> Literal["/", ".", ""]:
        r"""The separator in the paths that it is searched in: `/`, `.`, or "" for any.

        A pattern with "/" is meant for paths with slashes and one with `\.` for paths with dots,
        whatever the model has; a pattern with both is searched in the path as it is.
        """
        has_slash, has_dot = "/" in self.text, r"\." in self.text
        return "" if has_slash == has_dot else "/" if has_slash else "."

    @cached_property
    def digit_sets(self) -> frozenset[frozenset[str]] | None:
        """The sets of digits that single tokens match; None if it may distinguish all digits.

        Tokens that match all digits, or none, do not count. A back reference compares matched text
        and verbose mode changes the syntax, so nothing can be concluded about those.
        """
        sets = set()
        for token in self.tokens:
            if token.kind in ("back", "odd"):
                return None
            if token.kind in ("flags", "open") and token.has_verbose_flag:
                return None
            if token.kind in ("class", "coded", "octal", "escape", "char"):
                digits = frozenset(_digits_matched_by(token.text))
                if 0 < len(digits) < len(_DIGITS):
                    sets.add(digits)
        return frozenset(sets)

    @cached_property
    def required_texts(self) -> tuple[str, ...]:
        """Texts without digits that every matching path contains.

        >>> parse_pattern(r"layers\\.3\\..*q_proj(bias)?").required_texts
        ('layers.', '.', 'q_proj')
        """
        if any(
            token.kind in ("or", "flags", "odd") or token.has_verbose_flag for token in self.tokens
        ):
            return ()
        texts, depth = [""], 0
        for token in self.tokens:
            depth += (token.kind == "open") - (token.kind == "close")
            character = token.text[-1]
            is_literal = token.kind == "char" and character not in ".^$" + _DIGITS
            is_literal |= token.kind == "escape" and not character.isalnum()
            if depth == 0 and is_literal:
                texts[-1] += character
            elif token.kind in ("repeat", "count", "maybe"):
                # The character before a quantifier may be absent.
                texts[-1:] = [texts[-1][:-1], ""]
            else:
                texts.append("")
        return tuple(filter(None, texts))

    def max_search_steps(self, n_characters: int) -> float:
        """Return an upper bound for the ways that a backtracking search tries in a text.

        A repeat multiplies by the length of the text, alternatives add up, and the bound of a
        repeated group is infinite.
        """
        sums, products = [0.0], [float(n_characters)]
        previous_kind = ""
        for token in self.tokens:
            if token.kind in ("open", "odd"):
                sums.append(0.0)
                products.append(1.0)
            elif token.kind == "or":
                sums[-1] += products[-1]
                products[-1] = 1.0
            elif token.kind == "close" and len(sums) > 1:
                group_steps = sums.pop() + products.pop()
                products[-1] *= group_steps
            elif token.kind in ("repeat", "count"):
                products[-1] *= float("inf") if previous_kind == "close" else n_characters
            elif token.kind == "maybe":
                products[-1] *= 2
            previous_kind = token.kind
        return sum(sums) + sum(products)

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern compiled by `re`."""
        return re.compile(self.text)

    @cached_property
    def compiled_with_timeout(self) -> Any:
        """The pattern compiled by the module `regex`, whose searches accept a timeout."""
        import regex

        # To `regex` a brace that is no count starts fuzzy matching; to `re` it is a literal.
        braces = {"{": r"\{", "}": r"\}"}
        return regex.compile(
            "".join(braces.get(token.text, token.text) for token in self.tokens), regex.VERSION0
        )


@lru_cache(maxsize=4096)
def parse_pattern(text: str, where: str = "") -> Pattern:
    """Return the pattern, or raise an error that points at the invalid character.

    >>> parse_pattern("mlp/*+?kernel")
    Traceback (most recent call last):
        ...
    shardlab.errors.InvalidRules: [plan.invalid_rules] Invalid pattern: multiple repeat.
      where: mlp/*+?kernel
                   ^
      try:   use a regular expression of Python's re, such as mlp/.*kernel or layers\\.\\d+\\.mlp.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidRules(
            f"The pattern has {len(text):,} characters.",
            where=where,
            fix=f"use at most {MAX_LENGTH:,} characters; two rules can have the same spec.",
        )
    fix = r"use a regular expression of Python's re, such as mlp/.*kernel or layers\.\d+\.mlp."
    pattern = Pattern(text)
    _check_character_classes(pattern, where)
    try:
        re.compile(text)
    except re.error as error:
        position = error.pos if error.pos is not None else 0
        raise _pattern_error(f"Invalid pattern: {error.msg}.", text, position, where, fix) from None
    except (RecursionError, OverflowError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise _pattern_error(f"Invalid pattern: {reason}.", text, 0, where, fix) from None
    _check_counts(pattern, where)
    return pattern


def equivalent_digits(patterns: Iterable[Pattern]) -> str:
    """Return for each digit the first digit that no pattern distinguishes from it.

    A search depends on a character only through the sets of characters that tokens match. So the
    same patterns match two paths that differ only in digits which are in the same sets.
    """
    sets: set[frozenset[str]] = set()
    for pattern in patterns:
        if pattern.digit_sets is None:
            return _DIGITS
        sets |= pattern.digit_sets
    signatures = {
        digit: frozenset(digits for digits in sets if digit in digits) for digit in _DIGITS
    }
    return "".join(
        next(first for first in _DIGITS if signatures[first] == signatures[digit])
        for digit in _DIGITS
    )


@lru_cache(maxsize=4096)
def _digits_matched_by(token_text: str) -> str:
    """Return the digits that one character, escape or class matches."""
    if len(token_text) == 1:
        return token_text if token_text in _DIGITS else ""
    single = re.compile(token_text)
    return "".join(filter(single.fullmatch, _DIGITS))


def _check_character_classes(pattern: Pattern, where: str) -> None:
    """Raise for set notation in a class: Python reserves it, and `regex` interprets it today."""
    for token in pattern.tokens:
        if token.text == "[":  # a class that does not end
            raise _pattern_error(
                "Invalid pattern: unterminated character set.",
                pattern.text,
                token.start,
                where,
                r"add ] at its end, or write \[ for the character [.",
            )
        if token.kind == "class" and (operator := _SET_OPERATOR.search(token.text, 1)):
            raise _pattern_error(
                f"{operator[0]!r} is ambiguous inside a character class.",
                pattern.text,
                token.start + operator.start(),
                where,
                rf"write \{operator[0][0]} for the character itself.",
            )


def _check_counts(pattern: Pattern, where: str) -> None:
    """Raise for counts that multiply to an absurd size, as in `((a{999}){999}){999}`."""
    sizes, last_size = [0], 0
    for token in pattern.tokens:
        if token.kind in ("open", "odd"):
            sizes[-1] += last_size
            sizes.append(0)
            last_size = 0
        elif token.kind == "close" and len(sizes) > 1:
            last_size += sizes.pop()
        elif token.kind == "count":
            last_size *= max(
                1, *(int(number) for number in re.findall("[0-9]+", token.text) or "1")
            )
        elif token.kind not in ("repeat", "maybe", "or"):
            sizes[-1] += last_size
            last_size = 1
        if sum(sizes) + last_size > _MAX_EXPANDED:
            raise _pattern_error(
                "The counts in the pattern multiply to more than any path needs.",
                pattern.text,
                token.start,
                where,
                f"use counts that multiply to at most {_MAX_EXPANDED:,}; + and * are not limited.",
            )


def _pattern_error(message: str, text: str, position: int, where: str, fix: str) -> InvalidRules:
    """Return the error with a mark under the character, in a window of 72 characters."""
    flat = re.sub(r"\s", " ", text)
    start = max(0, min(position - 36, len(flat) - 72))
    prefix = "…" if start else ""
    window = prefix + flat[start : start + 72] + ("…" if start + 72 < len(flat) else "")
    mark = " " * (position - start + len(prefix)) + "^"
    location = f"{where}\n         " if where else ""
    return InvalidRules(message, where=f"{location}{window}\n         {mark}", fix=fix)
