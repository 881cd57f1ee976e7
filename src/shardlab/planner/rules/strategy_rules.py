r"""The rules that a strategy stands for: few, readable, and giving back exactly its specs.

>>> from shardlab.sharding.mesh import Mesh
>>> from shardlab.planner.models.presets import load_preset
>>> from shardlab.planner.strategies.strategy import parse_strategy, place
>>> mesh = Mesh(fsdp=8, tensor=4)
>>> for line in derive_rules(place(load_preset("llama3-8b"), parse_strategy("fsdp+tensor"), mesh)):
...     print(line.pattern, line.spec)
(q|k|v|gate|up)_proj\.weight$ P('tensor', 'fsdp')
(embed_tokens|lm_head)\.weight$ P('tensor', 'fsdp')
(o|down)_proj\.weight$ P('fsdp', 'tensor')
.* P()

A pattern is the end of a path, as short as tells the tensor from those with another spec, at least
two words long. Patterns of one spec that differ in one word become one.

A rule as a plan remembers it: of a strategy, or as a person gave it.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from shardlab.planner.tensor_group import TensorGroup
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.rules.rule_line import RuleLine
from shardlab.planner.rules.rules import Rules
from shardlab.sharding.spec import Spec

_SPLIT = re.compile(r"([./])")
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])")  # that stands alone
_LONG = 1000  # letters of a pattern that nobody reads
_WORDS = 2  # at least so many words of a path in a pattern


@dataclass(frozen=True, kw_only=True)
class _Named:
    """A family's name as words and separators, and with a star for every number of the path."""

    group: TensorGroup
    spec: Spec
    parts: tuple[str, ...]
    starred: str

    def end(self, n_words: int) -> tuple[str, ...]:
        return self.parts[max(0, len(self.parts) - 2 * n_words + 1) :]


def rule_lines_of(rules: Rules) -> tuple[RuleLine, ...]:
    """Return rules that were given, in the order in which they count.

    >>> from shardlab.planner.rules.rules import parse_rules
    >>> for line in rule_lines_of(parse_rules({"rules": [("up", "..., x")], "specs": {"out": "y"}})):
    ...     print(line.kind, line.pattern, line.spec_text)
    path out P('y')
    pattern up P(..., 'x')
    """
    specs = (
        RuleLine(
            pattern=r.pattern, spec=r.spec, kind="path", is_trailing=r.is_trailing, reason=r.reason
        )
        for r in rules.specs
    )
    patterns = (
        RuleLine(
            pattern=r.pattern,
            spec=r.spec,
            kind="pattern",
            is_trailing=r.is_trailing,
            reason=r.reason,
        )
        for r in rules.rules
    )
    logical = (RuleLine(pattern=r.name, spec=Spec(r.axes), kind="logical") for r in rules.logical)
    return (*specs, *patterns, *logical)


def derive_rules(placed: Iterable[ShardedGroup]) -> tuple[RuleLine, ...]:
    """Return rules in order, the first that is found in a path giving its spec."""
    named = [_named(each) for each in placed]
    apart: list[_Named] = []
    while missing := [each for each, end in zip(named, _ends(named), strict=True) if end is None]:
        # The same path but for numbers, and another spec: the fewest are named one by one, first.
        fewest = _all_but_most(missing) or missing
        apart += fewest
        gone = set(map(id, fewest))
        named = [each for each in named if id(each) not in gone]
    ends = _ends(named)
    lines = [line for each in apart for line in _exact_lines(each.group, each.spec)]
    whole = Spec()
    by_spec: dict[Spec, list[tuple[str, ...]]] = {}
    for each, end in zip(named, ends, strict=True):
        if each.spec != whole and end is not None:
            by_spec.setdefault(each.spec, []).append(end)
    for spec, found in by_spec.items():
        lines += [
            RuleLine(pattern=pattern, spec=spec) for pattern in _joined(list(dict.fromkeys(found)))
        ]
    if any(each.spec == whole for each in named):
        lines.append(RuleLine(pattern=".*", spec=whole))
    return tuple(lines)


def _named(placed: ShardedGroup) -> _Named:
    group = placed.group
    name = "\0".join(group.path_parts)  # a mark that stands in no path
    parts = tuple(part for part in _SPLIT.split(name))
    return _Named(group=group, spec=placed.spec, parts=parts, starred=_starred(name))


def _starred(text: str) -> str:
    return _NUMBER.sub("\0", text)


def _all_but_most(named: Iterable[_Named]) -> list[_Named]:
    """Return those whose path, but for numbers, is another's too that has as many tensors."""
    most: dict[str, _Named] = {}
    fewer = []
    for each in named:
        other = most.setdefault(each.starred, each)
        if other is not each:
            less, more = sorted((each, other), key=lambda one: one.group.n_tensors)
            most[each.starred] = more
            fewer.append(less)
    return fewer


def _ends(named: Sequence[_Named]) -> list[tuple[str, ...] | None]:
    """Return the shortest end of each name that no tensor with another spec has, or None."""
    # Sorted from their last letter on, names with one end stand side by side.
    ordered = sorted(named, key=lambda each: each.starred[::-1])
    keys = [each.starred[::-1] for each in ordered]
    until = [0] * len(ordered)  # from here to there all have one spec
    for at in range(len(ordered) - 1, -1, -1):
        is_same = at + 1 < len(ordered) and ordered[at].spec == ordered[at + 1].spec
        until[at] = until[at + 1] if is_same else at + 1

    def is_good(end: tuple[str, ...]) -> bool:
        key = _starred("".join(end))[::-1]
        first, beyond = bisect_left(keys, key), bisect_left(keys, key + chr(0x10FFFF))
        return until[first] >= beyond

    found = []
    for each in named:
        n_words = len(each.parts) // 2 + 1
        candidates = (each.end(n) for n in range(min(_WORDS, n_words), n_words + 1))
        found.append(next(filter(is_good, candidates), None))
    return found


def _joined(ends: Iterable[tuple[str, ...]]) -> list[str]:
    """Return patterns that find these ends: those that differ in one word are one pattern.

    Siblings differ in the last word but one, as q_proj and k_proj; then come the one before it and
    the last.
    """
    patterns = [tuple(map(_escaped, end)) for end in ends]
    for back in (3, 5, 1):
        groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for end in patterns:
            at = len(end) - min(back, len(end))
            is_short = back > len(end)  # stays what it is
            key = (end[:at], end if is_short else end[at + 1 :])
            groups.setdefault(key, []).append("" if is_short else end[at])
        patterns = [
            (*before, middle, *after)
            for (before, after), words in groups.items()
            for middle in _alternatives(words)
        ]
    return [f"{''.join(pattern)}$" for pattern in patterns]


def _alternatives(words: Sequence[str]) -> list[str]:
    """Return expressions that find the words.

    >>> _alternatives(["embed_tokens", "q_proj", "k_proj", "lm_head"])
    ['(q|k)_proj', '(embed_tokens|lm_head)']
    """
    by_tail: dict[str, list[str]] = {}
    for word in words:
        head, line, tail = word.rpartition("_")
        by_tail.setdefault(line + tail if head and "(" not in word else word, []).append(word)
    found = []
    single = [each[0] for each in by_tail.values() if len(each) == 1]
    for tail, alike in by_tail.items():
        if len(alike) > 1:
            found.append(f"({'|'.join(word.removesuffix(tail) for word in alike)}){tail}")
    if single:
        found.append(single[0] if len(single) == 1 else f"({'|'.join(single)})")
    return found


def _escaped(part: str) -> str:
    return r"[0-9]+".join(map(re.escape, part.split("\0")))


def _exact_lines(group: TensorGroup, spec: Spec) -> list[RuleLine]:
    """Return a rule for these tensors and no others; if it were too long, one for each path."""
    if (pattern := _exact(group)) is not None and len(pattern) <= _LONG:
        return [RuleLine(pattern=pattern, spec=spec)]
    return [RuleLine(pattern=path, spec=spec, kind="path") for path in group.paths()]


def _exact(group: TensorGroup) -> str | None:
    """Return a pattern that finds these tensors alone; None where numbers do not combine."""
    columns: list[list[str]] = [[*map(str, each)] for each in group.ranges]
    if group.listed_numbers is not None:
        columns = [list(dict.fromkeys(each)) for each in zip(*group.listed_numbers, strict=True)]
        if prod(map(len, columns)) != len(set(group.listed_numbers)):
            return None
    numbers = [f"({'|'.join(each)})" for each in columns]
    pieces = map(re.escape, group.path_parts)
    return "^" + "".join(a + b for a, b in zip(pieces, [*numbers, ""], strict=True)) + "$"
