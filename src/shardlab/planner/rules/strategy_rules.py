r"""The rules that a strategy amounts to: few, readable, and resulting in exactly its specs.

>>> from shardlab.sharding.mesh import Mesh
>>> from shardlab.planner.models.presets import load_preset
>>> from shardlab.planner.strategies.strategy import parse_strategy, shard_model
>>> mesh = Mesh(fsdp=8, tensor=4)
>>> sharded = shard_model(load_preset("llama3-8b"), parse_strategy("fsdp+tensor"), mesh)
>>> for line in derive_rules(sharded):
...     print(line.pattern, line.spec)
(q|k|v|gate|up)_proj\.weight$ P('tensor', 'fsdp')
(embed_tokens|lm_head)\.weight$ P('tensor', 'fsdp')
(o|down)_proj\.weight$ P('fsdp', 'tensor')
.* P()

A pattern is the shortest suffix of a path, of at least two segments, that distinguishes the tensor
from those with other specs. Patterns of one spec that differ in one segment are combined.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.rules.rule_line import RuleKind, RuleLine
from shardlab.planner.rules.rules import Rule, Rules
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.spec import Spec

_SPLIT = re.compile(r"([./])")
_NUMBER = re.compile(r"(?<![A-Za-z0-9])[0-9]+(?![A-Za-z0-9])")  # between separators
_MAX_PATTERN = 1000  # characters; a longer pattern is replaced by specs for each path
_MIN_SEGMENTS = 2  # of a path in a pattern

Suffix = tuple[str, ...]  # segments of a path and the separators between them


@dataclass(frozen=True, kw_only=True)
class _NamedGroup:
    """A group, its name as segments and separators, and the name with a mark for each number."""

    group: TensorGroup
    spec: Spec
    parts: tuple[str, ...]
    skeleton: str

    def suffix(self, n_segments: int) -> Suffix:
        """Return the last segments of the name."""
        return self.parts[max(0, len(self.parts) - 2 * n_segments + 1) :]


def rule_lines_of(rules: Rules) -> tuple[RuleLine, ...]:
    """Return the rules of a user in the order in which they apply.

    >>> from shardlab.planner.rules.rules import parse_rules
    >>> rules = parse_rules({"rules": [("up", "..., x")], "specs": {"out": "y"}})
    >>> for line in rule_lines_of(rules):
    ...     print(line.kind, line.pattern, line.spec_text)
    path out P('y')
    pattern up P(..., 'x')
    """
    sections: tuple[tuple[RuleKind, tuple[Rule, ...]], ...] = (
        ("path", rules.specs),
        ("pattern", rules.rules),
    )
    lines = [
        RuleLine(
            pattern=rule.pattern,
            spec=rule.spec,
            kind=kind,
            is_trailing=rule.is_trailing,
            reason=rule.reason,
        )
        for kind, section in sections
        for rule in section
    ]
    lines += [
        RuleLine(pattern=rule.name, spec=Spec(rule.axes), kind="logical") for rule in rules.logical
    ]
    return tuple(lines)


def derive_rules(sharded_groups: Iterable[ShardedGroup]) -> tuple[RuleLine, ...]:
    """Return rules in order: the first one that matches a path gives its spec."""
    named = [_name_group(sharded) for sharded in sharded_groups]
    exceptions: list[_NamedGroup] = []
    while ambiguous := [
        group
        for group, suffix in zip(named, _unique_suffixes(named), strict=True)
        if suffix is None
    ]:
        # Some groups have the same path but for numbers and different specs, so no suffix tells
        # them apart. The smaller ones get exact rules, which come first.
        smaller = _smaller_of_equal_paths(ambiguous) or ambiguous
        exceptions += smaller
        removed = set(map(id, smaller))
        named = [group for group in named if id(group) not in removed]
    lines = [line for group in exceptions for line in _exact_lines(group.group, group.spec)]
    replicated = Spec()
    by_spec: dict[Spec, list[Suffix]] = {}
    for group, suffix in zip(named, _unique_suffixes(named), strict=True):
        if group.spec != replicated and suffix is not None:
            by_spec.setdefault(group.spec, []).append(suffix)
    for spec, suffixes in by_spec.items():
        patterns = _combine_suffixes(list(dict.fromkeys(suffixes)))
        lines += [RuleLine(pattern=pattern, spec=spec) for pattern in patterns]
    if any(group.spec == replicated for group in named):
        lines.append(RuleLine(pattern=".*", spec=replicated))
    return tuple(lines)


def _name_group(sharded: ShardedGroup) -> _NamedGroup:
    name = "\0".join(sharded.group.path_parts)  # \0 is in no path
    return _NamedGroup(
        group=sharded.group,
        spec=sharded.spec,
        parts=tuple(_SPLIT.split(name)),
        skeleton=_mark_numbers(name),
    )


def _mark_numbers(text: str) -> str:
    return _NUMBER.sub("\0", text)


def _smaller_of_equal_paths(named: Iterable[_NamedGroup]) -> list[_NamedGroup]:
    """Return all groups but the largest among those with the same path but for numbers."""
    largest: dict[str, _NamedGroup] = {}
    smaller = []
    for group in named:
        rival = largest.setdefault(group.skeleton, group)
        if rival is not group:
            loser, winner = sorted((group, rival), key=lambda member: member.group.n_tensors)
            largest[group.skeleton] = winner
            smaller.append(loser)
    return smaller


def _unique_suffixes(named: Sequence[_NamedGroup]) -> list[Suffix | None]:
    """Return the shortest suffix of each name that no group with another spec has, or None."""
    # Sorted by reversed name, names with the same suffix are adjacent, so one binary search finds
    # all of them: comparing all pairs would be quadratic in the number of groups.
    ordered = sorted(named, key=lambda group: group.skeleton[::-1])
    keys = [group.skeleton[::-1] for group in ordered]
    run_end = [0] * len(ordered)  # groups from here to there have one spec
    for index in range(len(ordered) - 1, -1, -1):
        is_same = index + 1 < len(ordered) and ordered[index].spec == ordered[index + 1].spec
        run_end[index] = run_end[index + 1] if is_same else index + 1

    def is_unique(suffix: Suffix) -> bool:
        key = _mark_numbers("".join(suffix))[::-1]
        first, beyond = bisect_left(keys, key), bisect_left(keys, key + chr(0x10FFFF))
        return run_end[first] >= beyond

    suffixes = []
    for group in named:
        n_segments = len(group.parts) // 2 + 1
        candidates = (
            group.suffix(n) for n in range(min(_MIN_SEGMENTS, n_segments), n_segments + 1)
        )
        suffixes.append(next(filter(is_unique, candidates), None))
    return suffixes


def _combine_suffixes(suffixes: Iterable[Suffix]) -> list[str]:
    """Return patterns that match these suffixes, with those that differ in one segment combined."""
    patterns = [tuple(map(_escape_segment, suffix)) for suffix in suffixes]
    # Siblings differ most often in the last segment but one (q_proj, k_proj), then in the one
    # before it, then in the last. Segments and separators alternate, hence 3, 5 and 1.
    for from_end in (3, 5, 1):
        groups: dict[tuple[Suffix, Suffix], list[str]] = {}
        for parts in patterns:
            position = len(parts) - min(from_end, len(parts))
            is_too_short = from_end > len(parts)  # stays as it is
            key = (parts[:position], parts if is_too_short else parts[position + 1 :])
            groups.setdefault(key, []).append("" if is_too_short else parts[position])
        patterns = [
            (*before, segment, *after)
            for (before, after), segments in groups.items()
            for segment in _combine_segments(segments)
        ]
    return [f"{''.join(parts)}$" for parts in patterns]


def _combine_segments(segments: Sequence[str]) -> list[str]:
    """Return expressions that match the segments.

    >>> _combine_segments(["embed_tokens", "q_proj", "k_proj", "lm_head"])
    ['(q|k)_proj', '(embed_tokens|lm_head)']
    """
    by_tail: dict[str, list[str]] = {}
    for segment in segments:
        head, underscore, tail = segment.rpartition("_")
        has_tail = head and "(" not in segment
        by_tail.setdefault(underscore + tail if has_tail else segment, []).append(segment)
    # q_proj and k_proj share the tail _proj. Segments with a group "(" were combined before.
    expressions = [
        f"({'|'.join(segment.removesuffix(tail) for segment in siblings)}){tail}"
        for tail, siblings in by_tail.items()
        if len(siblings) > 1
    ]
    singles = [siblings[0] for siblings in by_tail.values() if len(siblings) == 1]
    if singles:
        expressions.append(singles[0] if len(singles) == 1 else f"({'|'.join(singles)})")
    return expressions


def _escape_segment(segment: str) -> str:
    return r"[0-9]+".join(map(re.escape, segment.split("\0")))


def _exact_lines(group: TensorGroup, spec: Spec) -> list[RuleLine]:
    """Return a rule for exactly these tensors, or one for each path if it would be too long."""
    if (pattern := _exact_pattern(group)) is not None and len(pattern) <= _MAX_PATTERN:
        return [RuleLine(pattern=pattern, spec=spec)]
    return [RuleLine(pattern=path, spec=spec, kind="path") for path in group.paths()]


def _exact_pattern(group: TensorGroup) -> str | None:
    """Return a pattern for exactly these tensors; None if the numbers are not all combinations."""
    columns: list[list[str]] = [[*map(str, numbers)] for numbers in group.ranges]
    if group.listed_numbers is not None:
        columns = [
            list(dict.fromkeys(column)) for column in zip(*group.listed_numbers, strict=True)
        ]
        if prod(map(len, columns)) != len(set(group.listed_numbers)):
            return None
    alternatives = [f"({'|'.join(column)})" for column in columns]
    texts = map(re.escape, group.path_parts)
    pairs = zip(texts, [*alternatives, ""], strict=True)
    return "^" + "".join(text + numbers for text, numbers in pairs) + "$"
