"""Logical rules: from the logical names of a tensor's dimensions to a spec, as in Flax.

>>> from shardlab.planner.rules.rules import parse_rules
>>> rules = parse_rules({"logical": [("mlp", "tensor"), ("embed", ("fsdp", "tensor")),
...                                  ("embed", "fsdp")]})
>>> logical_entries(("embed", "mlp"), rules)
(('fsdp',), ('tensor',))
"""

from __future__ import annotations

from dataclasses import replace

from shardlab.planner.model import Model
from shardlab.planner.rules.rules import Rules
from shardlab.planner.tensor_group import LogicalAxes
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

Entries = tuple[tuple[str, ...], ...]
# meaning of a dimension -> names that rules use for it, in order of preference
_RULE_NAMES = {
    "heads": ("heads", "q_heads", "joined_heads"),
    "kv_heads": ("kv_heads", "heads"),
    "head_dim": ("head_dim", "kv_head_dim", "kv"),
    "experts": ("experts", "exp", "expert"),
    "embed": ("embed", "hidden"),
    "mlp": ("mlp", "intermediate", "hidden"),
}
# MaxText has separate names for dimensions of expert weights and of the embedding table:
# another dimension of the tensor -> meaning -> that name.
_CONTEXT_NAMES = {
    "experts": {"embed": "embed_moe", "mlp": "mlp_moe"},
    "vocab": {"embed": "embed_vocab"},
}


def logical_spec(axes: LogicalAxes, rules: Rules, mesh: Mesh) -> Spec | None:
    """Return the spec for these logical names; None if no rule has any of them.

    Mesh axes that the mesh does not have are dropped after assignment, as in MaxText, so that one
    set of rules serves many meshes. Plain Flax passes them on, and JAX raises.
    """
    if not any(rule.name in axes for rule in rules.logical):
        return None
    entries = logical_entries(axes, rules)
    # After the assignment, not before: a missing axis still blocks other rules, as in Flax.
    return Spec(*(tuple(name for name in names if name in mesh.shape) for names in entries))


def resolve_semantics(model: Model, rules: Rules) -> Rules:
    """Return the rules with the semantics of the model's own Flax API, if none was stated.

    Axis names written in NNX follow NNX, in which a name may also be a mesh axis. All others follow
    linen, in which all names are logical.
    """
    is_nnx = rules.logical and rules.semantics is None and model.details.get("names") == "nnx"
    return replace(rules, semantics="nnx") if is_nnx else rules


def translate_meanings(meanings: LogicalAxes, rules: Rules) -> LogicalAxes:
    """Return inferred dimension meanings by the names that the rules use.

    >>> from shardlab.planner.rules.rules import parse_rules
    >>> rules = parse_rules({"logical": [("exp", "x"), ("embed_moe", "y")]})
    >>> translate_meanings(("experts", "embed"), rules)
    ('exp', 'embed_moe')
    """
    rule_names = {rule.name for rule in rules.logical}
    context = {
        meaning: name
        for neighbor in meanings
        for meaning, name in _CONTEXT_NAMES.get(neighbor or "", {}).items()
    }
    names: list[str | None] = []
    for meaning in meanings:
        key = meaning or ""
        candidates = (context.get(key, meaning), *_RULE_NAMES.get(key, (meaning,)))
        # Rules may call both embed and mlp "hidden"; the first dimension of a tensor gets it.
        unused = (name for name in candidates if name in rule_names and name not in names)
        names.append(next(unused, meaning))
    return tuple(names)


def logical_entries(axes: LogicalAxes, rules: Rules) -> Entries:
    """Return the mesh axes of each dimension, as flax.linen or flax.nnx assign them."""
    return _assign_nnx(axes, rules) if rules.semantics == "nnx" else _assign_linen(axes, rules)


def find_displaced_names(axes: LogicalAxes, rules: Rules, mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """Return the names that stay unsharded only because other dimensions use their mesh axes.

    Each with the mesh axes of its first rule that the mesh has.
    """
    if rules.semantics == "nnx":
        return {}
    entries, displaced = _assign_linen(axes, rules), {}
    for dim, name in enumerate(axes):
        choices = [rule.axes for rule in rules.logical if rule.name == name and name is not None]
        first_choice = choices[0] if choices else ()
        effective = tuple(axis for axis in first_choice if mesh.shape.get(axis, 1) > 1)
        # An explicit () among the choices says that the dimension may stay replicated.
        if effective and not entries[dim] and () not in choices:
            displaced[str(name)] = effective
    return displaced


def _assign_linen(axes: LogicalAxes, rules: Rules) -> Entries:
    """Assign as `flax.linen.logical_to_mesh_axes`: in the order of the rules.

    A rule applies if its dimension has no assignment yet and no mesh axis of it is in use. Flax
    raises for a tensor with the same name twice; here the first dimension gets the axes.
    """
    assigned: list[tuple[str, ...] | None] = [None] * len(axes)
    used: set[str] = set()
    for rule in rules.logical:
        dim = axes.index(rule.name) if rule.name in axes else None
        if dim is not None and assigned[dim] is None and used.isdisjoint(rule.axes):
            assigned[dim] = rule.axes
            used |= set(rule.axes)
    return tuple(names or () for names in assigned)


def _assign_nnx(axes: LogicalAxes, rules: Rules) -> Entries:
    """Assign as `flax.nnx`: the last rule of a name applies; a name without one is a mesh axis."""
    by_name = {rule.name: rule.axes for rule in rules.logical}
    return tuple(() if name is None else by_name.get(name, (name,)) for name in axes)
