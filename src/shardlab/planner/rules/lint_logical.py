"""Lint of logical rules: dimensions that stay unsharded, and misspelled names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlab._text.nearest import nearest_name
from shardlab.findings.finding import Finding
from shardlab.planner.plan_mesh import MAXTEXT_AXES
from shardlab.planner.rules.logical_axes import find_displaced_names, logical_entries
from shardlab.planner.rules.matching import logical_names_of, resolve_spec
from shardlab.planner.rules.path_search import RuleMatch
from shardlab.planner.rules.rule_findings import (
    join_names,
    match_bytes,
    match_name,
    rule_finding,
    tensors_text,
)
from shardlab.planner.rules.rules import LogicalRule, Rules
from shardlab.planner.strategies.axis_roles import ROLES, mesh_axis_roles
from shardlab.planner.tensor_group import LogicalAxes
from shardlab.sharding.mesh import Mesh

# Mesh axes that rules may name although this mesh does not have them.
_COMMON_AXES = {*MAXTEXT_AXES, *(name for names in ROLES.values() for name in names)}
_ACTIVATION_ROLES = ("data", "sequence")  # mesh axes that may shard activations only
_MAX_NAMES = 3  # unused names that a finding lists
TYPO_SIMILARITY = 0.75  # difflib ratio from which two names are taken for a typo


def lint_logical_rules(
    matches: Sequence[RuleMatch], rules: Rules, mesh: Mesh, large_bytes: int
) -> Iterator[Finding]:
    """Yield the findings about logical rules and logical names."""
    yield from _find_displaced_dims(matches, rules, mesh)
    yield from _find_misspelled_mesh_axes(rules, mesh)
    yield from _find_names_without_rule(matches, rules, mesh, large_bytes)
    yield from _find_unknown_axis_names(matches, rules, mesh)


def _find_displaced_dims(
    matches: Sequence[RuleMatch], rules: Rules, mesh: Mesh
) -> Iterator[Finding]:
    """Yield dimensions that have a rule but stay unsharded because others use its mesh axes.

    It is a warning if a mesh axis then shards no dimension of the tensor, otherwise information.
    """
    displaced: dict[tuple[str, tuple[str, ...], LogicalAxes], list[RuleMatch]] = {}
    for match in matches:
        axes = logical_names_of(match, rules)
        if match.rules or match.path_spec is not None or not rules.logical or axes is None:
            continue
        for name, mesh_axes in find_displaced_names(axes, rules, mesh).items():
            displaced.setdefault((name, mesh_axes, axes), []).append(match)
    for (name, mesh_axes, axes), members in displaced.items():
        rule = next(rule for rule in rules.logical if rule.name == name)
        used = {axis for names in logical_entries(axes, rules) for axis in names}
        idle = [axis for axis in mesh_axes if axis not in used]
        # A mesh axis that the mesh does not have can block a rule too: Flax counts it as used.
        blocking = [axis for axis in mesh_axes if axis in used] or [
            axis for axis in rule.axes if axis in used
        ]
        users = join_names(map(str, (axis for axis in axes if axis != name)))
        loss = f", and {join_names(map(repr, idle))} shards no dimension of it" if idle else ""
        yield rule_finding(
            "rule.conflict",
            f"Logical rules leave {name!r} of {match_name(members[0])} unsharded: "
            f"{join_names(map(repr, blocking))} is already used for {users}{loss}.",
            rule.location,
            f"add a rule for {name!r} with an unused mesh axis, or with [] to replicate it.",
            members,
            severity=None if idle else "info",
        )


def _find_misspelled_mesh_axes(rules: Rules, mesh: Mesh) -> Iterator[Finding]:
    """Yield logical rules whose mesh axis looks like a typo of one that the mesh has.

    Mesh axes that the mesh does not have are ignored, as in MaxText, so a typo would go unnoticed.
    """
    for rule in rules.logical:
        for name in rule.axes:
            suggestion = nearest_name(name, mesh.axis_names)
            if name not in mesh.shape and name not in _COMMON_AXES and suggestion is not None:
                yield rule_finding(
                    "rule.invalid_spec",
                    f"The logical rule for {rule.name!r} names mesh axis {name!r}, "
                    "which the mesh does not have; it is ignored.",
                    rule.location,
                    f"Did you mean {suggestion!r}? The mesh is {mesh}.",
                    (),
                    severity="warning",
                )


def _find_names_without_rule(
    matches: Sequence[RuleMatch], rules: Rules, mesh: Mesh, large_bytes: int
) -> Iterator[Finding]:
    """Yield misspelled logical names; otherwise names without a rule, if a mesh axis is unused.

    Rule lists usually also name axes of activations and of other models, so a rule that matches
    nothing matters only if some dimension has no rule.
    """
    if not rules.logical:
        return
    mesh_axes = mesh.shape if rules.semantics == "nnx" else {}  # NNX names may be mesh axes
    by_name = _matches_by_name(matches, rules)
    rule_by_name = {rule.name: rule for rule in rules.logical}
    without_rule = {
        name: members
        for name, members in by_name.items()
        if name not in rule_by_name and name not in mesh_axes
    }
    # Typos first: they explain an unused rule and a name without a rule at once.
    unused_rules = [rule for name, rule in rule_by_name.items() if name not in by_name]
    yield from _find_misspelled_names(unused_rules, without_rule)
    yield from _find_misspelled_dimensions(without_rule, [n for n in rule_by_name if n in by_name])
    large = {
        name: members
        for name, members in without_rule.items()
        if max(map(match_bytes, members)) >= large_bytes
    }
    # If no rule applies to any tensor, rule.unmatched has said so already.
    if all(name not in rule_by_name for name in by_name):
        return
    if large and (idle := _idle_mesh_axes(matches, rules, mesh)):
        # A tensor with two such dimensions is listed under both names, but counts once.
        members = [*{id(match): match for some in large.values() for match in some}.values()]
        largest = max(large, key=lambda name: sum(map(match_bytes, large[name])))
        dims = "a dimension" if len(large) == 1 else "dimensions"
        idle_names = join_names(map(repr, idle))
        unused_names = join_names(repr(rule.name) for rule in unused_rules)
        yield rule_finding(
            "rule.unmatched",
            f"No logical rule names {join_names(map(repr, large))}, {dims} of "
            f"{tensors_text(members)}, and no tensor is sharded over {idle_names}.",
            None,
            f'add a rule such as ["{largest}", "{idle[0]}"], or with [] to replicate it.'
            + f" No dimension is named {unused_names}." * (0 < len(unused_rules) <= _MAX_NAMES),
            members,
        )


def _find_misspelled_names(
    unused_rules: Sequence[LogicalRule], without_rule: dict[str, list[RuleMatch]]
) -> Iterator[Finding]:
    """Yield unused rules with a name like that of a dimension without a rule, which is removed."""
    for rule in unused_rules:
        name = nearest_name(rule.name, without_rule, cutoff=TYPO_SIMILARITY)
        if name is None:
            continue
        members = without_rule.pop(name)
        yield rule_finding(
            "rule.unused",
            f"The logical rule for {rule.name!r} matches no dimension, and {name!r}, a dimension "
            f"of {tensors_text(members)}, has no rule.",
            rule.location,
            f"Did you mean {name!r} instead of {rule.name!r}?",
            members,
        )


def _find_misspelled_dimensions(
    without_rule: dict[str, list[RuleMatch]], used_names: Sequence[str]
) -> Iterator[Finding]:
    """Yield dimensions whose name looks like one that has a rule, and remove them.

    Other dimensions have the name of the rule, so the dimension is misspelled and not the rule.
    """
    for name in list(without_rule):
        right_name = nearest_name(name, used_names, cutoff=TYPO_SIMILARITY)
        if right_name is None:
            continue
        members = without_rule.pop(name)
        yield rule_finding(
            "rule.unmatched",
            f"No logical rule names {name!r}, a dimension of {tensors_text(members)}, and there is "
            f"a rule for {right_name!r}.",
            None,
            f"Did you mean {right_name!r} instead of {name!r} in the model?",
            members,
        )


def _matches_by_name(matches: Sequence[RuleMatch], rules: Rules) -> dict[str, list[RuleMatch]]:
    """Return the tensors that logical rules apply to, by the names of their dimensions."""
    by_name: dict[str, list[RuleMatch]] = {}
    for match in matches:
        if not match.rules and match.path_spec is None:
            for name in dict.fromkeys(logical_names_of(match, rules) or ()):
                if name is not None:
                    by_name.setdefault(name, []).append(match)
    return by_name


def _idle_mesh_axes(matches: Sequence[RuleMatch], rules: Rules, mesh: Mesh) -> list[str]:
    """Return the mesh axes that shard no tensor, and are not for activations only."""
    roles = mesh_axis_roles(mesh)
    used = {name for role in _ACTIVATION_ROLES for name in roles.get(role, ())}
    for match in matches:
        used |= set(resolve_spec(match, rules, mesh).spec.mesh_axes)
    return [name for name, size in mesh.shape.items() if size > 1 and name not in used]


def _find_unknown_axis_names(
    matches: Sequence[RuleMatch], rules: Rules, mesh: Mesh
) -> Iterator[Finding]:
    """Yield axis names in the model that are neither mesh axes nor have a rule.

    If other names of the same tensor are mesh axes, it is sharded by those alone; JAX would raise.
    """
    by_name: dict[str, list[RuleMatch]] = {}
    for match in matches:
        if resolve_spec(match, rules, mesh).origin == "model_axes":
            for name in dict.fromkeys(match.group.axes or ()):
                if name is not None and name not in mesh.shape:
                    by_name.setdefault(name, []).append(match)
    for name, members in by_name.items():
        suggestion = nearest_name(name, mesh.axis_names)
        yield rule_finding(
            "rule.invalid_spec",
            f"The model names a dimension of {match_name(members[0])} {name!r}, which is not a "
            "mesh axis and has no rule; it counts as replicated.",
            None,
            f'add a logical rule, {{"logical": [("{name}", ...)]}}.'
            + (f" Did you mean {suggestion!r}? The mesh is {mesh}." if suggestion else ""),
            members,
            severity="warning",
        )
