"""Permutations and device groups as rules: a shift along a ring is the same rule on any size."""

from __future__ import annotations

from collections.abc import Sequence

from shardlab.analysis.scaling.size_rules import SizeRules

Pairs = Sequence[tuple[int, int]]


def is_one_permutation(perms: Sequence[Pairs], n_devices: Sequence[int], rules: SizeRules) -> bool:
    """Return whether the permutations of all meshes follow one rule.

    >>> rules = SizeRules([{"x": 64}, {"x": 2}, {"x": 3}, {"x": 4}])
    >>> ring = [[(i, (i + 1) % n) for i in range(n)] for n in (64, 2, 3, 4)]
    >>> is_one_permutation(ring, (64, 2, 3, 4), rules)
    True
    >>> fixed = [[(0, 1), (1, 2), (2, 3), (3, 0)]] * 4  # a ring only on 4 devices
    >>> is_one_permutation(fixed, (64, 2, 3, 4), rules)
    False
    """
    described = [_describe(pairs, n) for pairs, n in zip(perms, n_devices, strict=True)]
    kinds = set.intersection(*(set(kinds) for kinds in described))
    return any(
        _follow_rules([kinds[kind] for kinds in described], n_devices, rules)
        for kind in sorted(kinds)
    )


def _follow_rules(
    numbers: Sequence[tuple[int, ...]], n_devices: Sequence[int], rules: SizeRules
) -> bool:
    for values in zip(*numbers, strict=True):
        # A shift by -1 is one by n - 1.
        from_end = [value - n for value, n in zip(values, n_devices, strict=True)]
        if not (rules.follows(values) or rules.follows(from_end)):
            return False
    return True


def _describe(pairs: Pairs, n: int) -> dict[str, tuple[int, ...]]:
    """Return each kind of rule that the pairs follow on `n` devices, with its numbers."""
    if not pairs:
        return {"empty": ()}
    sources = sorted(source for source, _ in pairs)
    first, last = sources[0], sources[-1]
    if sources != list(range(first, last + 1)) or last >= n:
        return {}
    ends = (first, n - 1 - last)
    kinds: dict[str, tuple[int, ...]] = {}
    shifts = {(target - source) % n for source, target in pairs}
    if len(shifts) == 1:
        kinds["shift"] = (*shifts, *ends)
    if all(target == n - 1 - source for source, target in pairs):
        kinds["reverse"] = ends
    differences = {target ^ source for source, target in pairs}
    if len(differences) == 1:
        kinds["exchange"] = (*differences, *ends)
    return kinds


def are_one_grouping(
    groups: Sequence[Sequence[Sequence[int]] | None], n_devices: Sequence[int], rules: SizeRules
) -> bool:
    """Return whether the device groups of a collective follow one rule on all meshes."""
    if all(item is None for item in groups):
        return True
    described = [
        _describe_groups(item, n) if item is not None else {}
        for item, n in zip(groups, n_devices, strict=True)
    ]
    kinds = set.intersection(*(set(kinds) for kinds in described))
    return any(rules.follows([kinds[kind] for kinds in described]) for kind in sorted(kinds))


def _describe_groups(groups: Sequence[Sequence[int]], n: int) -> dict[str, int]:
    size, n_groups = len(groups[0]), len(groups)
    blocks = [list(range(i * size, (i + 1) * size)) for i in range(n_groups)]
    strided = [list(range(i, n, n_groups)) for i in range(n_groups)]
    found = [list(group) for group in groups]
    kinds = {"blocks": size} if found == blocks else {}
    return {**kinds, "strided": n_groups} if found == strided else kinds
