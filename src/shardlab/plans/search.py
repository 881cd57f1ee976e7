r"""Searching patterns in the paths of a model: exact, quick for 90,000 paths, and sure to end.

The tensors of a family differ in numbers alone, and a pattern such as `layers\.\d+\.mlp` cannot
tell one digit from another. So one path of each kind is searched, where two paths are of a kind if
they differ only in digits that no pattern tells apart (`pattern.digits_alike`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, product
from time import thread_time

from shardlab.errors import BadRules
from shardlab.plans.family import Family
from shardlab.plans.model import Model
from shardlab.plans.numbers import Numbers
from shardlab.plans.pattern import digits_alike, parse_pattern
from shardlab.plans.rules import PathSpec, Rule, Rules

BUDGET_SECONDS = 2.0  # of this thread's time, for all paths and patterns together
_MOST_WAYS = 2e6  # some 0.1 s of `re` at the very worst; beyond, a search is stopped by `regex`


@dataclass(frozen=True)
class Found:
    """A family, or the part of one, that the same rules find."""

    family: Family
    rules: tuple[int, ...]  # numbers of all patterns that are found, from 0
    path_spec: int | None = None  # number of the spec that is given for its path
    is_told: bool = True  # axis names may be told by the path: no tensor of the model has its own


def search(model: Model, rules: Rules) -> tuple[Found, ...]:
    """Return every tensor of the model once, in families split by the rules that find them."""
    groups = _grouped(_Search(number, rule) for number, rule in enumerate(rules.rules))
    budget = _Budget()
    by_path = _by_skeleton(rules.specs)
    is_told = not any(family.axes for family in model.families)
    return tuple(
        Found(each, numbers, path_spec, is_told)
        for family in model.families
        for path_spec, part in _given(family, rules.specs, by_path)
        for numbers, each in _split(part, groups, budget)
    )


def in_form(path: str, form: str) -> str:
    """Return the path with its separators written as a pattern wants them.

    >>> in_form("layers.0.up", "/"), in_form("layers/0/up", "."), in_form("layers.0.up", "")
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
        self.ways: dict[int, bool] = {}

    def finds(self, path: str, budget: _Budget) -> bool:
        path = in_form(path, self.pattern.form)
        n = len(path)
        if n not in self.ways:
            self.ways[n] = self.pattern.most_ways(n + 1) <= _MOST_WAYS
        if self.ways[n]:
            return self.pattern.compiled.search(path) is not None
        left = budget.left
        if left <= 0:
            raise self.too_long(path)
        try:
            return self.pattern.timed.search(path, timeout=left) is not None
        except TimeoutError:
            raise self.too_long(path) from None

    def too_long(self, path: str) -> BadRules:
        what = f"Searching the patterns took more than {BUDGET_SECONDS:g} s, and was stopped."
        place = f"{self.rule.where}\n         " if self.rule.where else ""
        return BadRules(
            what,
            where=f"{place}pattern {self.pattern.text:.200}\n         path {path:.200}",
            fix="no repeat inside a repeat: (a+)+ is a+; and one .* where there are many.",
        )


_Group = tuple[list[_Search], dict[int, int]]


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
    family: Family, groups: Iterable[_Group], budget: _Budget
) -> Iterator[tuple[tuple[int, ...], Family]]:
    """Yield the parts of a family that are found by the same patterns."""
    always: tuple[int, ...] = ()  # patterns found in all of its paths
    apart: list[tuple[Mapping[int, int], dict[Numbers, tuple[int, ...]]]] = []
    for searches, alike in groups:
        kinds = {
            kind: _finding(searches, family.path(numbers), budget)
            for kind, numbers in _kinds(family, alike).items()
        }
        if len(set(kinds.values())) == 1:
            always += next(iter(kinds.values()))
        else:
            apart.append((alike, kinds))
    if not apart:
        yield tuple(sorted(always)), family
        return
    parts: dict[tuple[tuple[int, ...], ...], list[Numbers]] = {}
    for numbers in family.numbers():
        key = tuple([kinds[_kind(numbers, alike)] for alike, kinds in apart])
        parts.setdefault(key, []).append(numbers)
    for key, members in parts.items():
        yield tuple(sorted((*always, *chain(*key)))), family.only(members)


def _finding(searches: Iterable[_Search], path: str, budget: _Budget) -> tuple[int, ...]:
    """Return the numbers of the patterns that are found in a path."""
    found = tuple(each.number for each in searches if each.finds(path, budget))
    if budget.left <= 0:
        raise next(iter(searches)).too_long(path)
    return found


def _kind(numbers: Numbers, alike: Mapping[int, int]) -> Numbers:
    return tuple([each.translate(alike) for each in numbers])


def _kinds(family: Family, alike: Mapping[int, int]) -> dict[Numbers, Numbers]:
    """Return one tensor's numbers for each kind, by kind."""
    if family.listed is not None:
        kinds: dict[Numbers, Numbers] = {}
        for numbers in family.listed:
            kinds.setdefault(_kind(numbers, alike), numbers)
        return kinds
    columns = []
    for each in family.ranges:
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
    return re.sub(r"[0-9]+|\*", "*", in_form(path, "/"))


def _given(
    family: Family, specs: tuple[PathSpec, ...], by_path: Mapping[str, list[int]]
) -> Iterator[tuple[int | None, Family]]:
    """Yield the parts of a family that are given a spec by path, and the part that is not."""
    some = next(iter(family.numbers()), None)
    candidates = (
        by_path.get(_skeleton(family.path(some)), ()) if by_path and some is not None else ()
    )
    if not candidates:
        yield None, family
        return
    if [in_form(specs[each].pattern, "/") for each in candidates] == [in_form(family.name, "/")]:
        yield candidates[0], family  # a star for each number: all of them
        return
    exact = {in_form(specs[each].pattern, "/"): each for each in reversed(candidates)}
    starred = [(_starred(path), each) for path, each in reversed(exact.items()) if "*" in path]
    parts: dict[int | None, list[Numbers]] = {}
    for numbers in family.numbers():
        path = in_form(family.path(numbers), "/")
        number = exact.get(path)
        if number is None:
            number = next((each for star, each in starred if star.fullmatch(path)), None)
        parts.setdefault(number, []).append(numbers)
    for number, members in parts.items():
        yield number, family if len(parts) == 1 else family.only(members)


def _starred(path: str) -> re.Pattern[str]:
    return re.compile("[0-9]+".join(map(re.escape, path.split("*"))))
