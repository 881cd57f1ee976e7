"""Lint of logical rules: array axes that come away with nothing, names that are slips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlab.layouts.cuts import nearest_name
from shardlab.layouts.mesh import Mesh
from shardlab.plans.lint_words import listed, name_of, rule_finding
from shardlab.plans.logical import logical_entries, squeezed_out
from shardlab.plans.matching import OWN_NAMES, given_spec, names_of
from shardlab.plans.mesh_text import MAXTEXT_AXES
from shardlab.plans.roles import ROLES
from shardlab.plans.rules import Rules
from shardlab.plans.search import Found
from shardlab.plans.tensor import Axes
from shardlab.records.finding import Finding

# Mesh axes that rules may name for other meshes than this one.
_KNOWN = {*MAXTEXT_AXES, *(name for names in ROLES.values() for name in names)}


def squeezed(found: Sequence[Found], rules: Rules, mesh: Mesh) -> Iterator[Finding]:
    """Yield array axes that logical rules name and leave whole, since others took the mesh axes.

    It matters where a mesh axis then cuts nothing of the tensor; else it is only mentioned.
    """
    groups: dict[tuple[str, tuple[str, ...], Axes], list[Found]] = {}
    for each in found:
        axes = names_of(each, rules)
        if each.rules or each.path_spec is not None or not rules.logical or axes is None:
            continue
        for name, wanted in squeezed_out(axes, rules, mesh).items():
            groups.setdefault((name, wanted, axes), []).append(each)
    for (name, wanted, axes), parts in groups.items():
        rule = next(each for each in rules.logical if each.name == name)
        used = {each for names in logical_entries(axes, rules) for each in names}
        idle = [each for each in wanted if each not in used]
        taken = [each for each in wanted if each in used]
        others = listed(map(str, (axis for axis in axes if axis != name)))
        lost = f", and {listed(map(repr, idle))} cuts nothing of it" if idle else ""
        yield rule_finding(
            "rule.conflict",
            f"Logical rules leave {name!r} of {name_of(parts[0])} whole: "
            f"{listed(map(repr, taken))} went to {others}{lost}.",
            rule.place,
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
                    "rule.misfit",
                    f"The logical rule for {rule.name!r} names mesh axis {name!r}, "
                    f"which the mesh does not have; it is passed over.",
                    rule.place,
                    f"{near!r}, the nearest of {mesh}.",
                    (),
                    severity="warning",
                )


def nameless(found: Sequence[Found], rules: Rules, mesh: Mesh) -> Iterator[Finding]:
    """Yield names of a model's array axes that are neither mesh axes nor have a rule.

    Where others of the same tensor are mesh axes it is cut by those alone, which JAX would refuse.
    """
    groups: dict[str, list[Found]] = {}
    for each in found:
        if given_spec(each, rules, mesh)[1] == OWN_NAMES:
            for name in dict.fromkeys(each.family.axes or ()):
                if name is not None and name not in mesh.shape:
                    groups.setdefault(name, []).append(each)
    for name, parts in groups.items():
        near = nearest_name(name, mesh.axis_names)
        yield rule_finding(
            "rule.misfit",
            f"The model names an array axis of {name_of(parts[0])} {name!r}, which is no axis of "
            "the mesh and has no rule; it counts as whole.",
            None,
            f'a logical rule, {{"logical": [("{name}", ...)]}}'
            + (f", or {near!r}, the nearest of {mesh}." if near else "."),
            parts,
            severity="warning",
        )
