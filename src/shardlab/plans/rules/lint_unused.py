"""Lint of rules that find no tensor: each with the nearest part of a path, many in one finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlab.plans.rules.lint_words import rule_finding
from shardlab.plans.rules.near import near_path, near_words
from shardlab.plans.rules.rules import PathSpec, Rule, Rules
from shardlab.plans.rules.search import Found
from shardlab.records.finding import Finding

_APART = 5  # rules that are told one by one; more are likely for another model
_SHOWN = 8


def unused(found: Sequence[Found], rules: Rules) -> Iterator[Finding]:
    """Yield the patterns that are found in no path."""
    used = {number for each in found for number in each.rules}
    names = [each.family.name for each in found]
    left = {n: r for n, r in enumerate(rules.rules) if n not in used and not r.reason}
    if len(left) > _APART:
        what = f"{len(left):,} of {len(rules.rules):,} rules find no tensor."
        yield _together(what, left, names)
        return
    for number, rule in left.items():
        what = f"Rule {number + 1} ({rule.pattern:.80}) finds no tensor."
        fix = near_words(rule.pattern, names)
        yield rule_finding("rule.unused", what, rule.place, fix, (), rule=number)


def unused_paths(found: Sequence[Found], rules: Rules) -> Iterator[Finding]:
    """Yield the specs for paths that no tensor has."""
    used = {number for each in found for number in each.path_specs}
    families = [each.family for each in found]
    left = {n: spec for n, spec in enumerate(rules.specs) if n not in used}
    if len(left) > _APART:
        what = f"No tensor has the paths of {len(left):,} of {len(rules.specs):,} specs."
        yield _together(what, left, [family.name for family in families])
        return
    for spec in left.values():
        what = f"No tensor has the path {spec.pattern!r:.120} of a spec."
        fix = near_path(spec.pattern, families)
        yield rule_finding("rule.unused", what, spec.place, fix, ())


def _together(
    what: str, left: dict[int, Rule] | dict[int, PathSpec], names: Sequence[str]
) -> Finding:
    """Return one finding for many, which are shown beneath it."""
    first = next(iter(left.values()))
    shows = [f"{n + 1}: {rule.pattern:.80}" for n, rule in [*left.items()][:_SHOWN]]
    more = [f"and {len(left) - _SHOWN:,} more"] * (len(left) > _SHOWN)
    such = f" Its paths are such as {names[0]}." if names else ""
    fix = f"rules for this model; {near_words(first.pattern, names)}{such}"
    return rule_finding(
        "rule.unused", what, first.place, fix, (), rules=tuple(left), shows=(*shows, *more)
    )
