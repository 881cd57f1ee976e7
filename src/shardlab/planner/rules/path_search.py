r"""Searching patterns in the paths of a model: exact, fast for 90,000 paths, and bounded in time.

The tensors of a group differ only in numbers, and a pattern such as `layers\.\d+\.mlp` cannot
distinguish digits. So only one path of each class is searched: two paths are in one class if they
differ only in digits that no pattern distinguishes (`pattern.equivalent_digits`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from time import thread_time

from shardlab.errors import InvalidRules
from shardlab.planner.model import Model
from shardlab.planner.rules.pattern import equivalent_digits, parse_pattern
from shardlab.planner.rules.rules import PathSpec, Rule, Rules
from shardlab.planner.tensor_group import Numbers, TensorGroup

BUDGET_SECONDS = 2.0  # processor time of this thread, for all paths and patterns together
_PATH_LENGTHS = (4096, 1024, 512, 256, 192, 128, 96, 64, 48, 32, 16)
# About 0.1 s of `re` in the very worst case. Above that bound the search uses `regex`, which can be
# interrupted; `re` cannot, and holds the GIL while it backtracks.
_MAX_STEPS = 2e6


@dataclass(frozen=True, kw_only=True)
class RuleMatch:
    """A tensor group, or a subset of one, that the same rules match."""

    group: TensorGroup
    rules: tuple[int, ...]  # numbers of all matching patterns, from 0
    path_specs: tuple[int, ...] = ()  # numbers of the specs, all equal, given for its paths
    # Meanings of dimensions may be inferred: no tensor of the model has axis names of its own.
    can_infer_axes: bool = True

    @property
    def path_spec(self) -> int | None:
        """The number of the first spec given for its paths."""
        return self.path_specs[0] if self.path_specs else None


def match_paths(model: Model, rules: Rules) -> tuple[RuleMatch, ...]:
    """Return every tensor of the model once, in groups split by the rules that match them."""
    searches = _group_by_digits(_Search(number, rule) for number, rule in enumerate(rules.rules))
    budget = _TimeBudget()
    by_skeleton = _specs_by_skeleton(rules.specs)
    # Flax replicates unannotated arrays of an annotated model, so nothing is inferred for those.
    can_infer_axes = not any(group.axes for group in model.groups)
    return tuple(
        RuleMatch(group=subset, rules=numbers, path_specs=path_specs, can_infer_axes=can_infer_axes)
        for group in model.groups
        for path_specs, part in _split_by_path_spec(group, rules.specs, by_skeleton)
        for numbers, subset in _split_by_patterns(part, searches, budget)
    )


def with_separator(path: str, separator: str) -> str:
    """Return the path written with the separator that a pattern expects.

    >>> with_separator("layers.0.up", "/"), with_separator("layers/0/up", ".")
    ('layers/0/up', 'layers.0.up')

    A path with slashes keeps its dots, because there they are part of a name.
    """
    if separator == "/":
        return path if "/" in path else path.replace(".", "/")
    return path.replace("/", ".") if separator == "." else path


class _TimeBudget:
    """The processor time that remains for all searches."""

    def __init__(self) -> None:
        self.deadline = thread_time() + BUDGET_SECONDS

    @property
    def remaining_seconds(self) -> float:
        return self.deadline - thread_time()


class _Search:
    """The pattern of one rule, searched by an engine that is sure to terminate in time."""

    def __init__(self, number: int, rule: Rule) -> None:
        self.number, self.rule = number, rule
        self.pattern = parse_pattern(rule.pattern, rule.where)
        self.separator = self.pattern.separator
        self.search_unbounded = self.pattern.compiled.search
        # The longest path in which `re` is certain to be fast.
        lengths = (n for n in _PATH_LENGTHS if self.pattern.max_search_steps(n + 1) <= _MAX_STEPS)
        self.max_unbounded_length = next(lengths, 0)

    def may_match(self, group: TensorGroup) -> bool:
        """Return whether the paths contain the texts without which nothing matches."""
        text = with_separator("\0".join(group.path_parts), self.separator)
        return all(required in text for required in self.pattern.required_texts)

    def matches_path(self, path: str, budget: _TimeBudget) -> bool:
        """Return whether the pattern is found in a path."""
        path = with_separator(path, self.separator) if self.separator else path
        if len(path) <= self.max_unbounded_length:
            return self.search_unbounded(path) is not None
        timeout = budget.remaining_seconds
        if timeout <= 0:
            raise self.timeout_error(path)
        try:
            return self.pattern.compiled_with_timeout.search(path, timeout=timeout) is not None
        except TimeoutError:
            raise self.timeout_error(path) from None

    def timeout_error(self, path: str) -> InvalidRules:
        """Return the error for a search that takes too long."""
        location = f"{self.rule.where}\n         " if self.rule.where else ""
        return InvalidRules(
            f"Searching the patterns took more than {BUDGET_SECONDS:g} s and was stopped.",
            where=f"{location}pattern {self.pattern.text:.200}\n         path {path:.200}",
            fix="write a+ instead of (a+)+, one .* instead of many, or fewer rules.",
        )


_DigitMap = Mapping[int, int]  # for str.translate: digit -> the first digit equivalent to it
_SearchGroup = tuple[list[_Search], _DigitMap]
# For patterns that match only some of a group's paths: the matching rules by class of numbers.
_PartialMatch = tuple[_DigitMap, dict[Numbers, tuple[int, ...]]]


def _group_by_digits(searches: Iterable[_Search]) -> list[_SearchGroup]:
    """Return the patterns grouped by the digits that they distinguish."""
    by_digit_sets: dict[object, list[_Search]] = {}
    for search in searches:
        by_digit_sets.setdefault(search.pattern.digit_sets, []).append(search)
    return [
        (
            members,
            str.maketrans("0123456789", equivalent_digits(search.pattern for search in members)),
        )
        for members in by_digit_sets.values()
    ]


def _split_by_patterns(
    group: TensorGroup, search_groups: Iterable[_SearchGroup], budget: _TimeBudget
) -> Iterator[tuple[tuple[int, ...], TensorGroup]]:
    """Yield the subsets of a group that the same patterns match."""
    matching_all: tuple[int, ...] = ()  # rules that match all of its paths
    partial_matches: list[_PartialMatch] = []
    for members, digit_map in search_groups:
        searches = [search for search in members if search.may_match(group)]
        rules_by_class = {
            number_class: _matching_rules(searches, group.path(numbers), budget)
            for number_class, numbers in (
                _class_examples(group, digit_map).items() if searches else ()
            )
        }
        # Most patterns match all paths of a group or none; only the others need a split.
        if len(set(rules_by_class.values())) == 1:
            matching_all += next(iter(rules_by_class.values()))
        elif rules_by_class:
            partial_matches.append((digit_map, rules_by_class))
    if not partial_matches:
        yield tuple(sorted(matching_all)), group
        return
    subsets: dict[tuple[object, ...], list[Numbers]] = {}
    for key, numbers in _match_keys(group, partial_matches):
        subsets.setdefault(key, []).append(numbers)
    for members_numbers in subsets.values():
        some = (
            rule
            for digit_map, rules_by_class in partial_matches
            for rule in rules_by_class[_number_class(members_numbers[0], digit_map)]
        )
        yield tuple(sorted((*matching_all, *some))), group.with_numbers(members_numbers)


def _match_keys(
    group: TensorGroup, partial_matches: Iterable[_PartialMatch]
) -> Iterator[tuple[tuple[object, ...], Numbers]]:
    """Yield the numbers of each tensor with a key that is equal if the same patterns match."""
    # Most patterns depend on one number of the path only (the layer, or the expert). Looking those
    # up by that number, and not by the whole tuple, makes 58 layers × 256 experts fast.
    by_position: dict[int, list[_PartialMatch]] = {}
    by_tuple: list[_PartialMatch] = []
    for digit_map, rules_by_class in partial_matches:
        for position in range(len(group.path_parts) - 1):
            by_number = {
                number_class[position]: rules for number_class, rules in rules_by_class.items()
            }
            if all(
                by_number[number_class[position]] == rules
                for number_class, rules in rules_by_class.items()
            ):
                single: dict[Numbers, tuple[int, ...]] = {
                    (number,): rules for number, rules in by_number.items()
                }
                by_position.setdefault(position, []).append((digit_map, single))
                break
        else:
            by_tuple.append((digit_map, rules_by_class))
    cache: dict[tuple[int, str], object] = {}
    for numbers in group.numbers():
        key: list[object] = [
            rules_by_class[_number_class(numbers, digit_map)]
            for digit_map, rules_by_class in by_tuple
        ]
        for position, lookups in by_position.items():
            number = numbers[position]
            if (position, number) not in cache:
                cache[position, number] = tuple(
                    lookup[_number_class((number,), digit_map)] for digit_map, lookup in lookups
                )
            key.append(cache[position, number])
        yield tuple(key), numbers


def _matching_rules(searches: Iterable[_Search], path: str, budget: _TimeBudget) -> tuple[int, ...]:
    """Return the numbers of the rules whose patterns match a path."""
    numbers = tuple(search.number for search in searches if search.matches_path(path, budget))
    # Many fast searches add up too: 2,000 patterns in 10,000 classes of paths.
    if budget.remaining_seconds <= 0:
        raise next(iter(searches)).timeout_error(path)
    return numbers


def _number_class(numbers: Numbers, digit_map: _DigitMap) -> Numbers:
    return tuple([number.translate(digit_map) for number in numbers])


def _class_examples(group: TensorGroup, digit_map: _DigitMap) -> dict[Numbers, Numbers]:
    """Return the numbers of one tensor for each class, by class."""
    if group.listed_numbers is not None:
        examples: dict[Numbers, Numbers] = {}
        for numbers in group.listed_numbers:
            examples.setdefault(_number_class(numbers, digit_map), numbers)
        return examples
    columns = []
    for numbers_range in group.ranges:
        column: dict[str, str] = {}
        for number in map(str, numbers_range):
            column.setdefault(number.translate(digit_map), number)
        columns.append(column.items())
    return {
        tuple(number_class for number_class, _ in pairs): tuple(number for _, number in pairs)
        for pairs in product(*columns)
    }


def _specs_by_skeleton(specs: Iterable[PathSpec]) -> dict[str, list[int]]:
    """Return the numbers of the specs by their paths without numbers."""
    by_skeleton: dict[str, list[int]] = {}
    for number, path_spec in enumerate(specs):
        by_skeleton.setdefault(_path_skeleton(path_spec.pattern), []).append(number)
    return by_skeleton


def _path_skeleton(path: str) -> str:
    return re.sub(r"[0-9]+|\*", "*", with_separator(path, "/"))


def _split_by_path_spec(
    group: TensorGroup, specs: tuple[PathSpec, ...], by_skeleton: Mapping[str, list[int]]
) -> Iterator[tuple[tuple[int, ...], TensorGroup]]:
    """Yield the subsets of a group that get the same spec by path, and the rest."""
    example = next(iter(group.numbers()), None)
    candidates = (
        by_skeleton.get(_path_skeleton(group.path(example)), ())
        if by_skeleton and example is not None
        else ()
    )
    if not candidates:
        yield (), group
        return
    candidate_paths = [with_separator(specs[number].pattern, "/") for number in candidates]
    # The common case of a saved plan: one spec per group, written as the group's name.
    if candidate_paths == [with_separator(group.name, "/")]:
        yield (candidates[0],), group  # a star for each number: all tensors of the group
        return
    # Of two specs for one path the first counts, so the dictionary is filled from the end.
    exact = {with_separator(specs[number].pattern, "/"): number for number in reversed(candidates)}
    wildcards = [
        (_wildcard_pattern(path), number) for path, number in reversed(exact.items()) if "*" in path
    ]
    subsets: dict[object, tuple[dict[int, None], list[Numbers]]] = {}
    for numbers in group.numbers():
        path = with_separator(group.path(numbers), "/")
        spec_number = exact.get(path)
        if spec_number is None:
            spec_number = next(
                (number for wildcard, number in wildcards if wildcard.fullmatch(path)), None
            )
        key = (
            None
            if spec_number is None
            else (specs[spec_number].spec, specs[spec_number].is_trailing)
        )
        used, members = subsets.setdefault(key, ({}, []))
        used |= {} if spec_number is None else {spec_number: None}
        members.append(numbers)
    for used, members in subsets.values():
        yield tuple(used), group if len(subsets) == 1 else group.with_numbers(members)


def _wildcard_pattern(path: str) -> re.Pattern[str]:
    return re.compile("[0-9]+".join(map(re.escape, path.split("*"))))
