"""Logical rules: from the names of a tensor's array axes to a spec, as Flax does it.

>>> from shardlab.planner.rules.rules import parse_rules
>>> rules = parse_rules({"logical": [("mlp", "tensor"), ("embed", ("fsdp", "tensor")),
...                                  ("embed", "fsdp")]})
>>> logical_entries(("embed", "mlp"), rules)
(('fsdp',), ('tensor',))
"""

from __future__ import annotations

from dataclasses import replace

from shardlab.planner.tensor_group import LogicalAxes
from shardlab.planner.model import Model
from shardlab.planner.rules.rules import Rules
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

Entries = tuple[tuple[str, ...], ...]
# what an array axis is -> what authors of rules call it, MaxText's names for a special place first
_CALLED = {
    "heads": ("heads", "q_heads", "joined_heads"),
    "kv_heads": ("kv_heads", "heads"),
    "head_dim": ("head_dim", "kv_head_dim", "kv"),
    "experts": ("experts", "exp", "expert"),
    "embed": ("embed", "hidden"),
    "mlp": ("mlp", "intermediate", "hidden"),
}
_SPECIAL = {"experts": {"embed": "embed_moe", "mlp": "mlp_moe"}, "vocab": {"embed": "embed_vocab"}}


def logical_spec(axes: LogicalAxes, rules: Rules, mesh: Mesh) -> Spec | None:
    """Return the spec for these axis names; None where no rule names any of them.

    Mesh axes that the mesh lacks are left out after all is assigned, as MaxText does, so that one
    set of rules serves many meshes; plain Flax hands them on, and JAX refuses.
    """
    if not any(rule.name in axes for rule in rules.logical):
        return None
    entries = logical_entries(axes, rules)
    return Spec(*(tuple(name for name in names if name in mesh.shape) for names in entries))


def resolve_semantics(model: Model, rules: Rules) -> Rules:
    """Return the rules to be read as the model's own Flax reads them, where nobody said how.

    For names that an author wrote in NNX that is NNX's way, in which mesh axes may stand among
    them; for all others linen's, in which all names are logical.
    """
    is_nnx = rules.logical and rules.semantics is None and model.details.get("names") == "nnx"
    return replace(rules, semantics="nnx") if is_nnx else rules


def translate_meanings(axes: LogicalAxes, rules: Rules) -> LogicalAxes:
    """Return axis names that we told by a tensor's name, in the words that the rules use.

    >>> from shardlab.planner.rules.rules import parse_rules
    >>> translate_meanings(("experts", "embed"), parse_rules({"logical": [("exp", "x"), ("embed_moe", "y")]}))
    ('exp', 'embed_moe')
    """
    names = {rule.name for rule in rules.logical}
    special = {k: v for place in axes for k, v in _SPECIAL.get(place or "", {}).items()}
    words: list[str | None] = []
    for axis in axes:
        ways = (special.get(axis or "", axis), *_CALLED.get(axis or "", (axis,)))
        words.append(next((way for way in ways if way in names and way not in words), axis))
    return tuple(words)


def logical_entries(axes: LogicalAxes, rules: Rules) -> Entries:
    """Return the mesh axes of each array axis, as flax.linen or flax.nnx assign them."""
    return _nnx(axes, rules) if rules.semantics == "nnx" else _linen(axes, rules)


def find_displaced_names(axes: LogicalAxes, rules: Rules, mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """Return the names that stay whole only since others of the tensor took their mesh axes.

    Each with the mesh axes that its first rule wanted and the mesh has.
    """
    if rules.semantics == "nnx":
        return {}
    entries, out = _linen(axes, rules), {}
    for at, name in enumerate(axes):
        wanted = [rule.axes for rule in rules.logical if rule.name == name and name is not None]
        first = tuple(each for each in (wanted[0] if wanted else ()) if mesh.shape.get(each, 1) > 1)
        if first and not entries[at] and () not in wanted:
            out[str(name)] = first
    return out


def _linen(axes: LogicalAxes, rules: Rules) -> Entries:
    """Assign as `flax.linen.logical_to_mesh_axes`: in the order of the rules.

    A rule counts if its array axis has nothing yet and none of its mesh axes is in use. A name that
    comes twice is refused there, as a mistake; here the first place gets it.
    """
    found: list[tuple[str, ...] | None] = [None] * len(axes)
    used: set[str] = set()
    for rule in rules.logical:
        at = axes.index(rule.name) if rule.name in axes else None
        if at is not None and found[at] is None and used.isdisjoint(rule.axes):
            found[at] = rule.axes
            used |= set(rule.axes)
    return tuple(each or () for each in found)


def _nnx(axes: LogicalAxes, rules: Rules) -> Entries:
    """Assign as `flax.nnx`: a name's last rule counts, and a name without one is a mesh axis."""
    by_name = {rule.name: rule.axes for rule in rules.logical}
    return tuple(() if name is None else by_name.get(name, (name,)) for name in axes)
