r"""Searching patterns in the paths of a model: exact, quick for 90,000 paths, and sure to end.

The tensors of a family differ in numbers alone, and a pattern such as `layers\.\d+\.mlp` cannot
tell one digit from another. So one path of each kind is searched, where two paths are of a kind if
they differ only in digits that no pattern tells apart (`pattern.digits_alike`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from time import thread_time

from shardlab.errors import InvalidRules
from shardlab.planner.tensor_group import TensorGroup, Numbers
from shardlab.planner.model import Model
from shardlab.planner.rules.pattern import digits_alike, parse_pattern
from shardlab.planner.rules.rules import PathSpec, Rule, Rules

BUDGET_SECONDS = 2.0  # of this thread's time, for all paths and patterns together
_LENGTHS = (4096, 1024, 512, 256, 192, 128, 96, 64, 48, 32, 16)
_MOST_WAYS = 2e6  # some 0.1 s of `re` at the very worst; beyond, a search is stopped by `regex`


@dataclass(frozen=True, kw_only=True)
class RuleMatch:
    """A family, or the part of one, that the same rules find."""

    group: TensorGroup
    rules: tuple[int, ...]  # numbers of all patterns that are found, from 0
    path_specs: tuple[int, ...] = ()  # numbers of the specs, all alike, given for its paths
    is_told: bool = True  # axis names may be told by the path: no tensor of the model has its own

    @property
    def path_spec(self) -> int | None:
        return self.path_specs[0] if self.path_specs else None


def match_paths(model: Model, rules: Rules) -> tuple[RuleMatch, ...]:
    """Return every tensor of the model once, in families split by the rules that find them."""
    groups = _grouped(_Search(number, rule) for number, rule in enumerate(rules.rules))
    budget = _Budget()
    by_path = _by_skeleton(rules.specs)
    is_told = not any(group.axes for group in model.groups)
    return tuple(
        RuleMatch(group=each, rules=numbers, path_specs=path_specs, is_told=is_told)
        for group in model.groups
        for path_specs, part in _given(group, rules.specs, by_path)
        for numbers, each in _split(part, groups, budget)
    )


def with_separator(path: str, form: str) -> str:
    """Return the path with its separators written as a pattern wants them.

    >>> with_separator("layers.0.up", "/"), with_separator("layers/0/up", "."), with_separator("layers.0.up", "")
    ('layers/0/up', 'layers.0.up', 'layers.0.up')

    A path with slashes keeps its dots: they are part of a name there.
    """
    if form == "/":
        return path if "/" in path else path.replace(".", "/")
    return path.replace("/", ".") if form == "." else path


class _Budget:
    """The time that is left for all searches."""

    def __init__(self) -> None:
        self.end = thread_time() + BUDGET_SECONDS

    @property
    def left(self) -> float:
        return self.end - thread_time()


class _Search:
    """One pattern with the rule it is of, searched by the engine that is sure to end."""

    def __init__(self, number: int, rule: Rule) -> None:
        self.number, self.rule = number, rule
        self.pattern = parse_pattern(rule.pattern, rule.where)
        self.form = self.pattern.form
        self.quick = self.pattern.compiled.search
        # The longest path in which `re` is sure to be quick.
        lengths = (n for n in _LENGTHS if self.pattern.most_ways(n + 1) <= _MOST_WAYS)
        self.longest = next(lengths, 0)

    def may_find(self, group: TensorGroup) -> bool:
        """Tell whether the family's paths have the words without which it finds nothing."""
        text = with_separator("\0".join(group.path_parts), self.form)
        return all(word in text for word in self.pattern.words)

    def finds(self, path: str, budget: _Budget) -> bool:
        path = with_separator(path, self.form) if self.form else path
        if len(path) <= self.longest:
            return self.quick(path) is not None
        left = budget.left
        if left <= 0:
            raise self.too_long(path)
        try:
            return self.pattern.timed.search(path, timeout=left) is not None
        except TimeoutError:
            raise self.too_long(path) from None

    def too_long(self, path: str) -> InvalidRules:
        what = f"Searching the patterns took more than {BUDGET_SECONDS:g} s, and was stopped."
        place = f"{self.rule.where}\n         " if self.rule.where else ""
        return InvalidRules(
            what,
            where=f"{place}pattern {self.pattern.text:.200}\n         path {path:.200}",
            fix="a+ in place of (a+)+; one .* in place of many; fewer rules.",
        )


_Group = tuple[list[_Search], dict[int, int]]  # with the digits that they cannot tell apart
_Apart = tuple[Mapping[int, int], dict[Numbers, tuple[int, ...]]]  # what is found, by kind


def _grouped(searches: Iterable[_Search]) -> list[_Group]:
    """Return the patterns that tell the same digits apart together, with what that makes alike."""
    groups: dict[object, list[_Search]] = {}
    for each in searches:
        groups.setdefault(each.pattern.digit_sets, []).append(each)
    return [
        (group, str.maketrans("0123456789", digits_alike(each.pattern for each in group)))
        for group in groups.values()
    ]


def _split(
    group: TensorGroup, groups: Iterable[_Group], budget: _Budget
) -> Iterator[tuple[tuple[int, ...], TensorGroup]]:
    """Yield the parts of a family that are found by the same patterns."""
    always: tuple[int, ...] = ()  # patterns found in all of its paths
    apart: list[_Apart] = []
    for patterns, alike in groups:
        searches = [each for each in patterns if each.may_find(group)]
        kinds = {
            kind: _finding(searches, group.path(numbers), budget)
            for kind, numbers in (_kinds(group, alike).items() if searches else ())
        }
        if len(set(kinds.values())) == 1:
            always += next(iter(kinds.values()))
        elif kinds:
            apart.append((alike, kinds))
    if not apart:
        yield tuple(sorted(always)), group
        return
    parts: dict[tuple[object, ...], list[Numbers]] = {}
    for key, numbers in _keyed(group, apart):
        parts.setdefault(key, []).append(numbers)
    for members in parts.values():
        found = (each for alike, kinds in apart for each in kinds[_kind(members[0], alike)])
        yield tuple(sorted((*always, *found))), group.with_numbers(members)


def _keyed(
    group: TensorGroup, apart: Iterable[_Apart]
) -> Iterator[tuple[tuple[object, ...], Numbers]]:
    """Yield the numbers of each tensor with a key that is the same where all patterns agree.

    What depends on one number alone, as most patterns do, is looked up by that number.
    """
    columns: dict[int, list[_Apart]] = {}
    others: list[_Apart] = []
    for alike, kinds in apart:
        for at in range(len(group.path_parts) - 1):
            by_one = {kind[at]: found for kind, found in kinds.items()}
            if all(by_one[kind[at]] == found for kind, found in kinds.items()):
                columns.setdefault(at, []).append((alike, {(k,): v for k, v in by_one.items()}))
                break
        else:
            others.append((alike, kinds))
    known: dict[tuple[int, str], object] = {}
    for numbers in group.numbers():
        key: list[object] = [kinds[_kind(numbers, alike)] for alike, kinds in others]
        for at, single in columns.items():
            number = numbers[at]
            if (at, number) not in known:
                known[at, number] = tuple(k[_kind((number,), alike)] for alike, k in single)
            key.append(known[at, number])
        yield tuple(key), numbers


def _finding(searches: Iterable[_Search], path: str, budget: _Budget) -> tuple[int, ...]:
    """Return the numbers of the patterns that are found in a path."""
    found = tuple(each.number for each in searches if each.finds(path, budget))
    if budget.left <= 0:
        raise next(iter(searches)).too_long(path)
    return found


def _kind(numbers: Numbers, alike: Mapping[int, int]) -> Numbers:
    return tuple([each.translate(alike) for each in numbers])


def _kinds(group: TensorGroup, alike: Mapping[int, int]) -> dict[Numbers, Numbers]:
    """Return one tensor's numbers for each kind, by kind."""
    if group.listed_numbers is not None:
        kinds: dict[Numbers, Numbers] = {}
        for numbers in group.listed_numbers:
            kinds.setdefault(_kind(numbers, alike), numbers)
        return kinds
    columns = []
    for each in group.ranges:
        column: dict[str, str] = {}
        for number in map(str, each):
            column.setdefault(number.translate(alike), number)
        columns.append(column.items())
    return {
        tuple(kind for kind, _ in pairs): tuple(number for _, number in pairs)
        for pairs in product(*columns)
    }


def _by_skeleton(specs: Iterable[PathSpec]) -> dict[str, list[int]]:
    """Return the numbers of the specs by their paths without numbers."""
    found: dict[str, list[int]] = {}
    for number, each in enumerate(specs):
        found.setdefault(_skeleton(each.pattern), []).append(number)
    return found


def _skeleton(path: str) -> str:
    return re.sub(r"[0-9]+|\*", "*", with_separator(path, "/"))


def _given(
    group: TensorGroup, specs: tuple[PathSpec, ...], by_path: Mapping[str, list[int]]
) -> Iterator[tuple[tuple[int, ...], TensorGroup]]:
    """Yield the parts of a family that are given the same spec by path, and the rest."""
    some = next(iter(group.numbers()), None)
    candidates = (
        by_path.get(_skeleton(group.path(some)), ()) if by_path and some is not None else ()
    )
    if not candidates:
        yield (), group
        return
    if [with_separator(specs[each].pattern, "/") for each in candidates] == [
        with_separator(group.name, "/")
    ]:
        yield (candidates[0],), group  # a star for each number: all of them
        return
    exact = {with_separator(specs[each].pattern, "/"): each for each in reversed(candidates)}
    starred = [(_starred(path), each) for path, each in reversed(exact.items()) if "*" in path]
    parts: dict[object, tuple[dict[int, None], list[Numbers]]] = {}
    for numbers in group.numbers():
        path = with_separator(group.path(numbers), "/")
        number = exact.get(path)
        if number is None:
            number = next((each for star, each in starred if star.fullmatch(path)), None)
        key = None if number is None else (specs[number].spec, specs[number].is_trailing)
        used, members = parts.setdefault(key, ({}, []))
        used |= {} if number is None else {number: None}
        members.append(numbers)
    for used, members in parts.values():
        yield tuple(used), group if len(parts) == 1 else group.with_numbers(members)


def _starred(path: str) -> re.Pattern[str]:
    return re.compile("[0-9]+".join(map(re.escape, path.split("*"))))
