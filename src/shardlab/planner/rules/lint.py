"""Rule lint: rules that match nothing, are shadowed, conflict, or replicate large tensors.

>>> suggest_pattern_fix("mlp/up_porj/kernel", ["model.layers.*.mlp.up_proj.weight"])
"Did you mean 'up_proj' instead of 'up_porj'? No path contains 'kernel'."
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from math import prod

from shardlab._text.nearest import nearest_name
from shardlab.errors import LabError
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.planner.findings.finding_limits import Limits
from shardlab.planner.rules.lint_logical import TYPO_SIMILARITY, lint_logical_rules
from shardlab.planner.rules.matching import find_spec_error, logical_names_of, resolve_spec
from shardlab.planner.rules.path_search import RuleMatch
from shardlab.planner.rules.pattern import parse_pattern
from shardlab.planner.rules.rule_findings import (
    capitalize_first,
    join_names,
    limit_findings,
    match_bytes,
    match_name,
    rule_finding,
    tensors_text,
)
from shardlab.planner.rules.rules import PathSpec, Rule, Rules
from shardlab.planner.strategies.axis_roles import axis_with_same_role
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts
from shardlab.sharding.spec import Spec

# A pattern that matches all of these matches every path: they have nothing in common.
_PROBES = ("q", "#", "zz", "-~")
_WORD = re.compile(r"[^\W\d]\w*")
_NO_WORDS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<\w+>|\(\?\w*")  # regex syntax
_MIN_WORD = 3  # letters from which a typo can be recognized
_MAX_SENTENCES = 3  # of one suggestion
_MAX_SEPARATE = 5  # unused rules reported one by one; more are likely meant for another model
_MAX_LISTED = 8  # unused rules listed in one finding


def lint_rules(
    matches: Sequence[RuleMatch],
    rules: Rules,
    mesh: Mesh,
    large_bytes: int = Limits.replicated_bytes,
) -> tuple[Finding, ...]:
    """Return the findings about rules, each with paths and bytes.

    Tensors of one name count as large if they have `large_bytes` or more together. A rule with a
    `reason` is not reported, unless its spec is invalid.
    """
    context = _LintContext(matches=matches, rules=rules, mesh=mesh, large_bytes=large_bytes)
    checks: tuple[Callable[[_LintContext], Iterator[Finding]], ...] = (
        _find_unused_patterns,
        _find_unused_paths,
        _find_invalid_specs,
        _find_repeated_patterns,
        _find_shadowed_rules,
        _find_conflicts,
        _find_replicating_catch_alls,
        _find_unmatched_tensors,
    )
    # The order of checks is the order of the findings in a plan: what is certainly wrong first.
    pattern_findings = chain.from_iterable(check(context) for check in checks)
    logical_findings = lint_logical_rules(matches, rules, mesh, large_bytes)
    return limit_findings(chain(pattern_findings, logical_findings))


@dataclass(frozen=True, kw_only=True)
class _LintContext:
    """The rules, what they match, and the mesh."""

    matches: Sequence[RuleMatch]
    rules: Rules
    mesh: Mesh
    large_bytes: int

    @cached_property
    def matched_by_rule(self) -> list[set[int]]:
        """For each rule, the indices of all that it matches, whether it applies or not."""
        indices: list[set[int]] = [set() for _ in self.rules.rules]
        for index, match in enumerate(self.matches):
            for number in match.rules:
                indices[number].add(index)
        return indices

    @cached_property
    def applied_by_rule(self) -> list[list[RuleMatch]]:
        """For each rule, the matches that it applies to: no earlier rule matches them."""
        applied: list[list[RuleMatch]] = [[] for _ in self.rules.rules]
        for match in self.matches:
            if match.rules and match.path_spec is None:
                applied[match.rules[0]].append(match)
        return applied

    @cached_property
    def repeated_rules(self) -> dict[int, int]:
        """The rules that have the pattern of an earlier rule, with the number of that rule."""
        first: dict[str, int] = {}
        return {
            number: first[rule.pattern]
            for number, rule in enumerate(self.rules.rules)
            if first.setdefault(rule.pattern, number) != number
        }

    def rules_without_reason(self) -> Iterator[tuple[int, Rule]]:
        """Yield the rules that lint may report, with their numbers."""
        for number, rule in enumerate(self.rules.rules):
            if not rule.reason:
                yield number, rule

    def matches_of(self, number: int) -> list[RuleMatch]:
        """Return all that a rule matches, in the order of the model."""
        return [self.matches[index] for index in sorted(self.matched_by_rule[number])]

    def is_replicated(self, spec: Spec) -> bool:
        """Return whether a spec replicates over a mesh that has several devices."""
        return self.mesh.n_devices > 1 and prod(shard_counts(spec, self.mesh)) == 1


# ---------------------------------------------------------------------------- rules without a match


def _find_unused_patterns(context: _LintContext) -> Iterator[Finding]:
    # All matching rules count as used, not only the first: shadowed rules have a finding of their
    # own.
    used = {number for match in context.matches for number in match.rules}
    paths = [match.group.name for match in context.matches]
    unused = {n: rule for n, rule in context.rules_without_reason() if n not in used}
    if len(unused) > _MAX_SEPARATE:
        message = f"{len(unused):,} of {len(context.rules.rules):,} rules match no tensor."
        yield _combine_unused(message, unused, paths)
        return
    for number, rule in unused.items():
        message = f"{_rule_label(number, rule)} matches no tensor."
        fix = suggest_pattern_fix(rule.pattern, paths)
        yield rule_finding("rule.unused", message, rule.location, fix, (), rule_number=number)


def _find_unused_paths(context: _LintContext) -> Iterator[Finding]:
    used = {number for match in context.matches for number in match.path_specs}
    groups = [match.group for match in context.matches]
    specs = context.rules.specs
    unused = {number: spec for number, spec in enumerate(specs) if number not in used}
    if len(unused) > _MAX_SEPARATE:
        message = f"{len(unused):,} of {len(specs):,} specs are for paths that no tensor has."
        yield _combine_unused(message, unused, [group.name for group in groups])
        return
    for path_spec in unused.values():
        message = f"There is a spec for the path {path_spec.pattern!r:.120}, which no tensor has."
        fix = suggest_path(path_spec.pattern, groups)
        yield rule_finding("rule.unused", message, path_spec.location, fix, ())


def _combine_unused(
    message: str, unused: dict[int, Rule] | dict[int, PathSpec], paths: Sequence[str]
) -> Finding:
    """Return one finding for many unused rules, which are listed below it."""
    first = next(iter(unused.values()))
    lines = [f"{n + 1}: {rule.pattern:.80}" for n, rule in [*unused.items()][:_MAX_LISTED]]
    if len(unused) > _MAX_LISTED:
        lines.append(f"and {len(unused) - _MAX_LISTED:,} more")
    example = f" An example of its paths: {paths[0]}." if paths else ""
    return rule_finding(
        "rule.unused",
        message,
        first.location,
        f"write rules for this model. {suggest_pattern_fix(first.pattern, paths)}{example}",
        (),
        rule_numbers=tuple(unused),
        lines=lines,
    )


def suggest_pattern_fix(pattern: str, paths: Iterable[str]) -> str:
    """Return a suggestion for a pattern that matches none of these paths."""
    paths = list(paths)
    segments = {part for path in paths for part in re.split(r"[./*\[\]'\"]+", path) if part}
    words_in_paths = sorted(
        segments | {word for part in segments for word in part.split("_") if word}
    )
    candidates = [word for word in words_in_paths if len(word) >= _MIN_WORD]
    all_paths = "\n".join(paths)
    sentences, parts, missing = [], [], []
    pattern_words = (word.strip("_") for word in _WORD.findall(_NO_WORDS.sub(" ", pattern)))
    for word in dict.fromkeys(pattern_words):
        # Single letters are regex fragments; a word that exists is not the reason for no match.
        if len(word) < 2 or word in words_in_paths:
            continue
        suggestion = None
        if len(word) >= _MIN_WORD:
            suggestion = nearest_name(word, candidates, cutoff=TYPO_SIMILARITY)
        question = f"Did you mean {suggestion!r} instead of {word!r}?"
        if word in all_paths:
            # `layer` is a part of `layers`, which is a typo only if nothing else is wrong.
            parts += [question] if suggestion else []
        elif suggestion is None:
            missing.append(repr(word))
        else:
            sentences.append(question)
    if missing:
        sentences.append(f"No path contains {' or '.join(missing[:3])}.")
    if sentences or parts:
        return " ".join((sentences or parts)[:_MAX_SENTENCES])
    example = f", such as {paths[0]}" if paths else ""
    return f"compare the pattern with a path{example}; or remove the rule."


def suggest_path(path: str, groups: Iterable[TensorGroup]) -> str:
    """Return a suggestion for a path that no tensor has.

    >>> from shardlab.sharding.dtype import parse_dtype
    >>> from shardlab.planner.tensor_group import parse_tensor_group
    >>> suggest_path(
    ...     "layers.4.up", [parse_tensor_group("layers.{0..3}.up", (8, 4), parse_dtype("bf16"))])
    "Did you mean 'layers.*.up'? It exists for 0..3."
    """
    by_name = {group.name: group for group in groups}
    # Compare with stars for numbers and with one separator, so that only real differences count.
    starred = re.sub(r"(?<![^./])[0-9]+(?![^./])", "*", path).replace("/", ".")
    name_by_dotted = {name.replace("/", "."): name for name in by_name}
    nearest = nearest_name(starred, name_by_dotted)
    if nearest is None:
        return "use a path as the plan shows it; * stands for any number."
    group = by_name[name_by_dotted[nearest]]
    numbers = f" It exists for {group.numbers_text}." if group.n_tensors > 1 else ""
    return f"Did you mean {group.name!r}?{numbers}"


# ---------------------------------------------------------------------------- specs and overlaps


def _find_invalid_specs(context: _LintContext) -> Iterator[Finding]:
    """Yield specs that JAX would reject for the rank or the mesh; the plan replicates them."""
    invalid: dict[tuple[int | None, str, Spec, str], list[tuple[RuleMatch, LabError]]] = {}
    for match in context.matches:
        resolved = resolve_spec(match, context.rules, context.mesh)
        error = find_spec_error(resolved.spec, match.group.shape, context.mesh)
        if error is not None:
            key = (resolved.rule_number, resolved.rule, resolved.spec, type(error).__name__)
            invalid.setdefault(key, []).append((match, error))
    for (number, rule, spec, _), pairs in invalid.items():
        (first, error), members = pairs[0], [match for match, _ in pairs]
        source = rule if number is None else _applied_rule_label(first, context.rules)
        reason, fix = _explain_missing_axis(spec, context.mesh) or (error.what, error.fix)
        yield rule_finding(
            "rule.invalid_spec",
            f"{capitalize_first(source)} gives {match_name(first)} the spec {spec}, which is "
            f"invalid: {reason}",
            _applied_rule_location(first, context.rules),
            f"{fix} Until then the plan replicates {tensors_text(members)}.",
            members,
            rule_number=number,
        )


def _explain_missing_axis(spec: Spec, mesh: Mesh) -> tuple[str, str] | None:
    """Return reason and fix for a mesh axis that the mesh has under another name, by its role."""
    # By role before spelling: "mp" is close to "dp", but means tensor parallelism.
    for name in spec.mesh_axes:
        if name not in mesh.shape and (axis := axis_with_same_role(name, mesh)) is not None:
            return (
                f"The mesh has no axis {name!r}.",
                f"Did you mean {axis!r}? It has the same role as {name!r}.",
            )
    return None


def _find_repeated_patterns(context: _LintContext) -> Iterator[Finding]:
    for number, rule in context.rules_without_reason():
        if (first := context.repeated_rules.get(number)) is None:
            continue
        earlier = context.rules.rules[first]
        is_same = earlier.spec_text == rule.spec_text
        specs = (
            "and the same spec." if is_same else f"with {earlier.spec_text} and {rule.spec_text}."
        )
        yield rule_finding(
            "rule.conflict",
            f"Rules {first + 1} and {number + 1} have the same pattern {rule.pattern!r:.80}, "
            f"{specs}",
            rule.location,
            f"remove rule {number + 1}: only the first one applies.",
            context.matches_of(number),
            severity="info" if is_same else None,
            rule_number=number,
        )


def _find_shadowed_rules(context: _LintContext) -> Iterator[Finding]:
    """Yield rules that match, but never first; a catch-all at the end may have nothing to do."""
    last = len(context.rules.rules) - 1
    for number, rule in context.rules_without_reason():
        is_matching = bool(context.matched_by_rule[number])
        if context.applied_by_rule[number] or not is_matching or number in context.repeated_rules:
            continue
        if number == last and is_catch_all(rule.pattern):
            continue  # it documents that nothing else is expected
        members = context.matches_of(number)
        earlier = Counter(_applied_rule_label(match, context.rules) for match in members)
        verb = "applies" if len(earlier) == 1 else "apply"
        yield rule_finding(
            "rule.shadowed",
            f"{_rule_label(number, rule)} matches {tensors_text(members)} but never applies: "
            f"{join_names(earlier)} {verb} first.",
            rule.location,
            "move it before the wider rule, narrow that rule, or remove this one.",
            members,
            rule_number=number,
        )


def _find_conflicts(context: _LintContext) -> Iterator[Finding]:
    """Yield pairs of rules with different specs for some tensors, neither of which is narrower."""
    overlaps: dict[tuple[int, int], list[RuleMatch]] = {}
    for match in context.matches:
        if match.path_spec is None:
            for later in match.rules[1:]:
                if _has_different_specs(match, match.rules[0], later, context):
                    overlaps.setdefault((match.rules[0], later), []).append(match)
    for (first, second), members in overlaps.items():
        rule, later_rule = context.rules.rules[first], context.rules.rules[second]
        if rule.reason or later_rule.reason or _is_nested(first, second, context):
            continue
        is_large = sum(map(match_bytes, members)) >= context.large_bytes
        yield rule_finding(
            "rule.conflict",
            f"Rules {first + 1} ({rule.pattern:.60}) and {second + 1} ({later_rule.pattern:.60}) "
            f"both match {tensors_text(members)}, with {rule.spec_text} and "
            f"{later_rule.spec_text}; the first one applies.",
            later_rule.location or rule.location,
            "exclude these tensors from one of the patterns, or add a rule for them before both.",
            members,
            severity=None if is_large else "info",
            rule_number=second,
        )


def _has_different_specs(match: RuleMatch, first: int, second: int, context: _LintContext) -> bool:
    """Return whether two rules give a tensor different specs, both of which are valid."""
    rules, shape = context.rules.rules, match.group.shape
    if is_catch_all(rules[second].pattern):
        return False  # every rule before a catch-all is an exception to it
    specs = [rules[number].spec_for(len(shape)) for number in (first, second)]
    if any(find_spec_error(spec, shape, context.mesh) is not None for spec in specs):
        return False
    # P('x') and P('x', None) are the same sharding.
    padded = [(*spec.axes, *((),) * (len(shape) - len(spec))) for spec in specs]
    return padded[0] != padded[1]


def _is_nested(first: int, second: int, context: _LintContext) -> bool:
    """Return whether one rule matches all that the other does: an exception, or a shadowed rule."""
    first_matches, second_matches = (context.matched_by_rule[n] for n in (first, second))
    return first_matches <= second_matches or second_matches <= first_matches


# ---------------------------------------------------------------------------- replicated tensors


def _find_replicating_catch_alls(context: _LintContext) -> Iterator[Finding]:
    for number, rule in context.rules_without_reason():
        if not is_catch_all(rule.pattern):
            continue
        replicated = [
            match
            for match in context.applied_by_rule[number]
            if match_bytes(match) >= context.large_bytes
            and _is_valid_and_replicated(match, rule, context)
        ]
        if replicated:
            yield rule_finding(
                "rule.catch_all_replicates",
                f"{_rule_label(number, rule)} replicates {tensors_text(replicated)} on every "
                "device.",
                rule.location,
                "add rules for these tensors before it; or give the rule a reason if this is "
                "intended.",
                replicated,
                rule_number=number,
            )


def _is_valid_and_replicated(match: RuleMatch, rule: Rule, context: _LintContext) -> bool:
    shape = match.group.shape
    spec = rule.spec_for(len(shape))
    is_valid = find_spec_error(spec, shape, context.mesh) is None
    return is_valid and context.is_replicated(spec)


def _find_unmatched_tensors(context: _LintContext) -> Iterator[Finding]:
    """Yield tensors without a spec; if there are no rules at all, those with named dimensions."""
    rules = context.rules
    unmatched = [
        match
        for match in context.matches
        if context.mesh.n_devices > 1
        and (not rules.is_empty or any(match.group.axes or ()))
        and resolve_spec(match, rules, context.mesh).origin == "none"
    ]
    if not unmatched:
        return
    logical_names: dict[str, None] = {}
    if rules.is_empty or rules.logical:
        for match in unmatched:
            axes = logical_names_of(match, rules) or match.group.axes or ()
            logical_names |= dict.fromkeys(name for name in axes if name)
    if rules.is_empty:
        message = f"No rules shard the named dimensions of {tensors_text(unmatched)}"
        fix = "use a strategy"
    else:
        message = f"No rule matches {tensors_text(unmatched)}"
        fix = "add a rule for them, or .* at the end with a spec for the rest"
    if logical_names:
        fix += f"; or add logical rules for {join_names(map(repr, logical_names))}"
    is_large = any(match_bytes(match) >= context.large_bytes for match in unmatched)
    yield rule_finding(
        "rule.unmatched",
        f"{message}: they are replicated on every device.",
        None,
        f"{fix}.",
        unmatched,
        severity=None if is_large else "info",
    )


@lru_cache(maxsize=4096)
def is_catch_all(pattern: str) -> bool:
    """Return whether a pattern matches every path, as `.*` does.

    >>> is_catch_all(".*"), is_catch_all("^.+$"), is_catch_all(""), is_catch_all("a*b")
    (True, True, True, False)
    """
    parsed = parse_pattern(pattern)
    # `re` cannot be interrupted, so only patterns that are certain to be fast are probed.
    if parsed.max_search_steps(3) > 1e5:  # too complex to be one
        return False
    return all(parsed.compiled.search(probe) for probe in _PROBES)


def _rule_label(number: int, rule: Rule) -> str:
    return f"Rule {number + 1} ({rule.pattern:.80})"


def _applied_rule_label(match: RuleMatch, rules: Rules) -> str:
    if match.path_spec is not None:
        return f"the spec for {rules.specs[match.path_spec].pattern:.60}"
    return f"rule {match.rules[0] + 1} ({rules.rules[match.rules[0]].pattern:.60})"


def _applied_rule_location(match: RuleMatch, rules: Rules) -> SourceLocation | None:
    if match.path_spec is not None:
        return rules.specs[match.path_spec].location
    return rules.rules[match.rules[0]].location if match.rules else None
