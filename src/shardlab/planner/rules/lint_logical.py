"""Lint of logical rules: array axes that come away with nothing, names that are slips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches

from shardlab._text.nearest import nearest_name
from shardlab.findings.finding import Finding
from shardlab.planner.tensor_group import LogicalAxes
from shardlab.planner.plan_mesh import MAXTEXT_AXES
from shardlab.planner.rules.lint_text import amount_of, bytes_of, listed, name_of, rule_finding
from shardlab.planner.rules.logical_axes import logical_entries, find_displaced_names
from shardlab.planner.rules.matching import OWN_NAMES, resolve_spec, logical_names_of
from shardlab.planner.rules.path_search import RuleMatch
from shardlab.planner.rules.rules import Rules
from shardlab.planner.strategies.axis_roles import ROLES, mesh_axis_roles
from shardlab.sharding.mesh import Mesh

# Mesh axes that rules may name for other meshes than this one.
_KNOWN = {*MAXTEXT_AXES, *(name for names in ROLES.values() for name in names)}
_MAY_BE_IDLE = ("data", "sequence")  # roles of mesh axes that cut activations alone
_FEW = 3  # names that a finding lists
_NEAR = 0.75  # how alike a slip and what was meant are, for difflib


def squeezed(found: Sequence[RuleMatch], rules: Rules, mesh: Mesh) -> Iterator[Finding]:
    """Yield array axes that logical rules name and leave whole, since others took the mesh axes.

    It matters where a mesh axis then cuts nothing of the tensor; else it is only mentioned.
    """
    groups: dict[tuple[str, tuple[str, ...], LogicalAxes], list[RuleMatch]] = {}
    for each in found:
        axes = logical_names_of(each, rules)
        if each.rules or each.path_spec is not None or not rules.logical or axes is None:
            continue
        for name, wanted in find_displaced_names(axes, rules, mesh).items():
            groups.setdefault((name, wanted, axes), []).append(each)
    for (name, wanted, axes), parts in groups.items():
        rule = next(each for each in rules.logical if each.name == name)
        used = {each for names in logical_entries(axes, rules) for each in names}
        idle = [each for each in wanted if each not in used]
        taken = [each for each in wanted if each in used]
        # A mesh axis that the mesh lacks can be in the way too: Flax counts it as used.
        taken = taken or [each for each in rule.axes if each in used]
        others = listed(map(str, (axis for axis in axes if axis != name)))
        lost = f", and {listed(map(repr, idle))} cuts nothing of it" if idle else ""
        yield rule_finding(
            "rule.conflict",
            f"Logical rules leave {name!r} of {name_of(parts[0])} whole: "
            f"{listed(map(repr, taken))} went to {others}{lost}.",
            rule.location,
            f"a further rule for {name!r} with a mesh axis that is free, or [] to leave it whole.",
            parts,
            severity=None if idle else "info",
        )


def misspelt(rules: Rules, mesh: Mesh) -> Iterator[Finding]:
    """Yield logical rules whose mesh axis looks like a slip of one that the mesh has.

    Mesh axes that the mesh lacks are passed over, as in MaxText, so a slip would never be seen.
    """
    for rule in rules.logical:
        for name in rule.axes:
            near = nearest_name(name, mesh.axis_names)
            if name not in mesh.shape and name not in _KNOWN and near is not None:
                yield rule_finding(
                    "rule.invalid_spec",
                    f"The logical rule for {rule.name!r} names mesh axis {name!r}, "
                    f"which the mesh does not have; it is passed over.",
                    rule.location,
                    f"{near!r}, the nearest of {mesh}.",
                    (),
                    severity="warning",
                )


def strayed(
    found: Sequence[RuleMatch], rules: Rules, mesh: Mesh, large_bytes: int
) -> Iterator[Finding]:
    """Yield slips in logical names; else names without a rule, where a mesh axis cuts nothing.

    Such lists name axes of activations and of other models by custom, so that a rule which finds
    nothing matters only if an array axis goes without a rule for it.
    """
    if not rules.logical:
        return
    known = mesh.shape if rules.semantics == "nnx" else {}  # where such a name is a mesh axis
    by_name = _by_name(found, rules)
    said = {rule.name: rule for rule in rules.logical}
    without = {name: parts for name, parts in by_name.items() if name not in {*said, *known}}
    unused = [rule for name, rule in said.items() if name not in by_name]
    for rule in unused:
        for near in get_close_matches(rule.name, without, n=1, cutoff=_NEAR):
            parts = without.pop(near)
            yield rule_finding(
                "rule.unused",
                f"The logical rule for {rule.name!r} names no array axis, and {near!r}, an axis "
                f"of {amount_of(parts)}, has no rule.",
                rule.location,
                f"{near!r} in place of {rule.name!r}.",
                parts,
            )
    large = {name: parts for name, parts in without.items() if _largest(parts) >= large_bytes}
    if all(name not in said for name in by_name):  # no rule finds anything: told already
        return
    if large and (idle := _idle(found, rules, mesh)):
        parts = [*{id(each): each for some in large.values() for each in some}.values()]
        most = max(large, key=lambda name: sum(map(bytes_of, large[name])))
        axes = "an array axis" if len(large) == 1 else "array axes"
        others = listed(repr(rule.name) for rule in unused)
        yield rule_finding(
            "rule.unmatched",
            f"No logical rule names {listed(map(repr, large))}, {axes} of {amount_of(parts)}, "
            f"and no tensor is cut over {listed(map(repr, idle))}.",
            None,
            f'a rule such as ["{most}", "{idle[0]}"], or with [] to leave it whole.'
            + f" No array axis is named {others}." * (0 < len(unused) <= _FEW),
            parts,
        )


def _by_name(found: Sequence[RuleMatch], rules: Rules) -> dict[str, list[RuleMatch]]:
    """Return the tensors that logical rules are for, by the names of their array axes."""
    by_name: dict[str, list[RuleMatch]] = {}
    for each in found:
        if not each.rules and each.path_spec is None:
            for name in dict.fromkeys(logical_names_of(each, rules) or ()):
                if name is not None:
                    by_name.setdefault(name, []).append(each)
    return by_name


def _idle(found: Sequence[RuleMatch], rules: Rules, mesh: Mesh) -> list[str]:
    """Return the mesh axes that cut no tensor, and are not for activations alone."""
    roles = mesh_axis_roles(mesh)
    used = {name for role in _MAY_BE_IDLE for name in roles.get(role, ())}
    for each in found:
        used |= set(resolve_spec(each, rules, mesh)[0].mesh_axes)
    return [name for name, size in mesh.shape.items() if size > 1 and name not in used]


def _largest(parts: Sequence[RuleMatch]) -> int:
    return max(map(bytes_of, parts))


def nameless(found: Sequence[RuleMatch], rules: Rules, mesh: Mesh) -> Iterator[Finding]:
    """Yield names of a model's array axes that are neither mesh axes nor have a rule.

    Where others of the same tensor are mesh axes it is cut by those alone, which JAX would refuse.
    """
    groups: dict[str, list[RuleMatch]] = {}
    for each in found:
        if resolve_spec(each, rules, mesh)[1] == OWN_NAMES:
            for name in dict.fromkeys(each.group.axes or ()):
                if name is not None and name not in mesh.shape:
                    groups.setdefault(name, []).append(each)
    for name, parts in groups.items():
        near = nearest_name(name, mesh.axis_names)
        yield rule_finding(
            "rule.invalid_spec",
            f"The model names an array axis of {name_of(parts[0])} {name!r}, which is no axis of "
            "the mesh and has no rule; it counts as whole.",
            None,
            f'a logical rule, {{"logical": [("{name}", ...)]}}'
            + (f", or {near!r}, the nearest of {mesh}." if near else "."),
            parts,
            severity="warning",
        )
