"""Rule lint: rules that match nothing, are shadowed, conflict, or replicate something large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from math import prod

from shardlab.errors import LabError
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.planner.findings.limits import Limits
from shardlab.planner.rules.lint_logical import misspelt, nameless, squeezed, strayed
from shardlab.planner.rules.lint_text import (
    amount_of,
    bytes_of,
    first_of_each,
    listed,
    name_of,
    rule_finding,
    upper,
)
from shardlab.planner.rules.lint_unused import unused, unused_paths
from shardlab.planner.rules.matching import NO_RULE, resolve_spec, find_spec_error, logical_names_of
from shardlab.planner.rules.path_search import RuleMatch
from shardlab.planner.rules.pattern import parse_pattern
from shardlab.planner.rules.rules import Rule, Rules
from shardlab.planner.strategies.axis_roles import axis_with_same_role
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts
from shardlab.sharding.spec import Spec

_PROBES = ("q", "#", "zz", "-~")  # what only a pattern that finds everything finds, all of them


def lint_rules(
    found: Sequence[RuleMatch], rules: Rules, mesh: Mesh, large_bytes: int = Limits.replicated_bytes
) -> tuple[Finding, ...]:
    """Return what is wrong with the rules, each with the path and the bytes.

    It warns of tensors of one name that are `large_bytes` or more together.

    A rule with a `reason` is left alone, unless its spec does not fit.
    """
    about = _About(found=found, rules=rules, mesh=mesh, large_bytes=large_bytes)
    checks: tuple[Callable[[_About], Iterator[Finding]], ...] = (
        _misfits,
        _repeated,
        _shadowed,
        _conflicts,
        _catch_alls,
        _unmatched,
    )
    made = chain(unused(found, rules), unused_paths(found, rules), *(c(about) for c in checks))
    logical = chain(
        squeezed(found, rules, mesh),
        misspelt(rules, mesh),
        strayed(found, rules, mesh, large_bytes),
    )
    return first_of_each([*made, *logical, *nameless(found, rules, mesh)])


@dataclass(frozen=True, kw_only=True)
class _About:
    """What lint goes by."""

    found: Sequence[RuleMatch]
    rules: Rules
    mesh: Mesh
    large_bytes: int

    @cached_property
    def matched(self) -> list[set[int]]:
        """For each rule, the places in `found` of what it matches, taken by it or not."""
        sets: list[set[int]] = [set() for _ in self.rules.rules]
        for at, each in enumerate(self.found):
            for number in each.rules:
                sets[number].add(at)
        return sets

    @cached_property
    def taken(self) -> list[list[RuleMatch]]:
        """For each rule, what it takes."""
        parts: list[list[RuleMatch]] = [[] for _ in self.rules.rules]
        for each in self.found:
            if each.rules and each.path_spec is None:
                parts[each.rules[0]].append(each)
        return parts

    @cached_property
    def repeated(self) -> dict[int, int]:
        """The rules whose pattern an earlier rule has, with that rule."""
        first: dict[str, int] = {}
        places = (
            (at, first.setdefault(rule.pattern, at)) for at, rule in enumerate(self.rules.rules)
        )
        return {at: earlier for at, earlier in places if earlier != at}

    def open_rules(self) -> Iterator[tuple[int, Rule]]:
        """Yield the rules that have no reason to be left alone, with their numbers."""
        for at, rule in enumerate(self.rules.rules):
            if not rule.reason:
                yield at, rule

    def is_whole(self, spec: Spec) -> bool:
        return self.mesh.n_devices > 1 and prod(shard_counts(spec, self.mesh)) == 1


def _misfits(about: _About) -> Iterator[Finding]:
    """Specs that JAX would refuse for the rank or the mesh; the plan leaves such tensors whole."""
    groups: dict[tuple[int | None, str, Spec, str], list[tuple[RuleMatch, LabError]]] = {}
    for each in about.found:
        spec, words, number = resolve_spec(each, about.rules, about.mesh)
        if (error := find_spec_error(spec, each.group.shape, about.mesh)) is not None:
            key = (number, words, spec, type(error).__name__)
            groups.setdefault(key, []).append((each, error))
    for (number, words, spec, _), pairs in groups.items():
        (first, error), parts = pairs[0], [each for each, _ in pairs]
        said = upper(words) if number is None else upper(_taker(first, about.rules))
        fix = _other_name(spec, about.mesh) or error.fix
        yield rule_finding(
            "rule.invalid_spec",
            f"{said} gives {spec} to {name_of(first)}, and it does not fit: {error.what}",
            _place(first, about.rules),
            f"{fix} Until then the plan leaves {amount_of(parts)} whole.",
            parts,
            rule=number,
        )


def _other_name(spec: Spec, mesh: Mesh) -> str:
    """Return what the mesh calls an axis that it lacks, where names tell that it is the same."""
    for name in spec.mesh_axes:
        if name not in mesh.shape and (other := axis_with_same_role(name, mesh)) is not None:
            return f"{other!r}, which is for the same as {name!r}."
    return ""


def _repeated(about: _About) -> Iterator[Finding]:
    for at, rule in about.open_rules():
        if (first := about.repeated.get(at)) is not None:
            parts = [about.found[each] for each in sorted(about.matched[at])]
            earlier = about.rules.rules[first]
            same = earlier.spec_text == rule.spec_text
            yield rule_finding(
                "rule.conflict",
                f"Rules {first + 1} and {at + 1} have the same pattern {rule.pattern!r:.80}, "
                + (
                    "and the same spec."
                    if same
                    else f"with {earlier.spec_text} and {rule.spec_text}."
                ),
                rule.location,
                f"drop rule {at + 1}: the first counts.",
                parts,
                severity="info" if same else None,
                rule=at,
            )


def _shadowed(about: _About) -> Iterator[Finding]:
    """Rules that match, but never first. A catch-all at the end may have nothing left to do."""
    last = len(about.rules.rules) - 1
    for at, rule in about.open_rules():
        if about.taken[at] or not about.matched[at] or at in about.repeated:
            continue
        if at == last and is_catch_all(rule.pattern):
            continue
        parts = [about.found[each] for each in sorted(about.matched[at])]
        takers = Counter(_taker(each, about.rules) for each in parts)
        yield rule_finding(
            "rule.shadowed",
            f"{_said(at, rule)} finds {amount_of(parts)}, and takes nothing: "
            f"{listed(takers)} {'takes' if len(takers) == 1 else 'take'} all of it before.",
            rule.location,
            "put it before the wider rule, narrow that one, or drop it.",
            parts,
            rule=at,
        )


def _conflicts(about: _About) -> Iterator[Finding]:
    """Two rules that each find tensors the other does not, and give those of both other specs."""
    both: dict[tuple[int, int], list[RuleMatch]] = {}
    for each in about.found:
        if each.path_spec is None:
            for later in each.rules[1:]:
                if _differ(each, each.rules[0], later, about):
                    both.setdefault((each.rules[0], later), []).append(each)
    for (first, second), parts in both.items():
        rule, other = about.rules.rules[first], about.rules.rules[second]
        if rule.reason or other.reason or _is_nested(first, second, about):
            continue
        large = sum(map(bytes_of, parts)) >= about.large_bytes
        yield rule_finding(
            "rule.conflict",
            f"Rules {first + 1} ({rule.pattern:.60}) and {second + 1} ({other.pattern:.60}) both "
            f"find {amount_of(parts)}, with {rule.spec_text} and {other.spec_text}; the first counts.",
            other.location or rule.location,
            "a pattern that leaves out what the other means, or a rule for these before both.",
            parts,
            severity=None if large else "info",
            rule=second,
        )


def _catch_alls(about: _About) -> Iterator[Finding]:
    for at, rule in about.open_rules():
        if not is_catch_all(rule.pattern):
            continue
        whole = [
            each
            for each in about.taken[at]
            if find_spec_error(
                spec := rule.spec_for(len(each.group.shape)), each.group.shape, about.mesh
            )
            is None
            and about.is_whole(spec)
            and bytes_of(each) >= about.large_bytes
        ]
        if whole:
            yield rule_finding(
                "rule.catch_all_replicates",
                f"{_said(at, rule)} leaves {amount_of(whole)} whole on every device.",
                rule.location,
                "a rule of its own for each of these, before; or a reason, where it is meant.",
                whole,
                rule=at,
            )


def _unmatched(about: _About) -> Iterator[Finding]:
    """Tensors without a spec; where there are no rules at all, those whose axes have names."""
    parts = [
        each
        for each in about.found
        if about.mesh.n_devices > 1
        and (not about.rules.is_empty or any(each.group.axes or ()))
        and resolve_spec(each, about.rules, about.mesh)[1] == NO_RULE
    ]
    if parts:
        large = any(bytes_of(each) >= about.large_bytes for each in parts)
        axes = (logical_names_of(each, about.rules) or each.group.axes or () for each in parts)
        is_logical = about.rules.is_empty or about.rules.logical
        names = dict.fromkeys(name for each in axes for name in each if name and is_logical)
        logical = f"logical rules for {listed(map(repr, names))}" if names else ""
        what = f"No rule finds {amount_of(parts)}: every device holds them whole."
        fix = "a rule for them; at the end, .* with the spec for all that is left"
        if about.rules.is_empty:
            what = f"No rules say what cuts the named array axes of {amount_of(parts)}: " + (
                "every device holds them whole."
            )
            fix = "a strategy"
        yield rule_finding(
            "rule.unmatched",
            what,
            None,
            f"{'; or '.join(filter(None, (fix, logical)))}.",
            parts,
            severity=None if large else "info",
        )


@lru_cache(maxsize=4096)
def is_catch_all(pattern: str) -> bool:
    """Tell whether a pattern is found in every path, as `.*` is.

    >>> is_catch_all(".*"), is_catch_all("^.+$"), is_catch_all(""), is_catch_all("a*b")
    (True, True, True, False)
    """
    read = parse_pattern(pattern)
    if read.most_ways(3) > 1e5:  # too knotty to be one
        return False
    return all(read.compiled.search(probe) for probe in _PROBES)


def _differ(found: RuleMatch, first: int, second: int, about: _About) -> bool:
    """Tell whether two rules give a tensor specs that differ, both of which fit."""
    rules, shape = about.rules.rules, found.group.shape
    if is_catch_all(rules[second].pattern):
        return False
    specs = [rules[at].spec_for(len(shape)) for at in (first, second)]
    if any(find_spec_error(spec, shape, about.mesh) is not None for spec in specs):
        return False
    axes = [(*spec.axes, *((),) * (len(shape) - len(spec))) for spec in specs]
    return axes[0] != axes[1]


def _is_nested(first: int, second: int, about: _About) -> bool:
    """Tell whether one finds all that the other does: an exception before its rule, or a shadow."""
    one, other = about.matched[first], about.matched[second]
    return one <= other or other <= one


def _taker(found: RuleMatch, rules: Rules) -> str:
    if found.path_spec is not None:
        return f"the spec for {rules.specs[found.path_spec].pattern:.60}"
    return f"rule {found.rules[0] + 1} ({rules.rules[found.rules[0]].pattern:.60})"


def _place(found: RuleMatch, rules: Rules) -> SourceLocation | None:
    if found.path_spec is not None:
        return rules.specs[found.path_spec].location
    return rules.rules[found.rules[0]].location if found.rules else None


def _said(at: int, rule: Rule) -> str:
    return f"Rule {at + 1} ({rule.pattern:.80})"
