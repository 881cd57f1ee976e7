"""Matching: which rule takes which tensors of a family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from shardlab.errors import LabError
from shardlab.planner.tensor_group import LogicalAxes, TensorGroup
from shardlab.planner.memory.fp8_scales import is_scale
from shardlab.planner.model import Model
from shardlab.planner.plan import SkippedSharding
from shardlab.planner.rules.logical_axes import translate_meanings, logical_spec
from shardlab.planner.rules.path_search import RuleMatch, match_paths
from shardlab.planner.rules.rules import Rules
from shardlab.planner.strategies.dim_meaning import infer_dim_meanings
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts, shard_shape
from shardlab.sharding.spec import Spec

NO_RULE = "no rule"
OWN_SPEC = "the model's own spec"
OWN_NAMES = "the model's own axis names"
LOGICAL = "logical rules"


@dataclass(frozen=True, kw_only=True)
class ShardedGroup:
    """A family, or the part of one, whose tensors all have the same spec for the same reason."""

    group: TensorGroup
    spec: Spec
    rule: str  # in words: "rule 3: mlp/.*kernel", "strategy fsdp", "no rule"
    number: int | None = None  # of the rule, from 0; None where no rule matched
    gradient_spec: Spec | None = None  # where not that of the parameter: ZeRO stage 2
    state_spec: Spec | None = None  # of the optimizer's arrays, where not that: ZeRO stages 1 and 2
    declined: tuple[SkippedSharding, ...] = ()  # what a strategy would have cut, were it divisible


def match_rules(model: Model, rules: Rules, mesh: Mesh) -> Iterator[ShardedGroup]:
    """Yield every tensor of the model once, in families split by the rule that takes them."""
    return apply_rules(match_paths(model, rules), rules, mesh)


def apply_rules(found: Iterable[RuleMatch], rules: Rules, mesh: Mesh) -> Iterator[ShardedGroup]:
    """Yield what was found with the specs that the rules give; one that misfits counts as none."""
    for each in found:
        spec, words, number = resolve_spec(each, rules, mesh)
        if find_spec_error(spec, each.group.shape, mesh) is not None:
            spec, words = Spec(), f"{words}, which does not fit"
        yield ShardedGroup(group=each.group, spec=spec, rule=words, number=number)


def resolve_spec(found: RuleMatch, rules: Rules, mesh: Mesh) -> tuple[Spec, str, int | None]:
    """Return the spec that the first of the rules gives, that rule in words, and its number."""
    group, rank = found.group, len(found.group.shape)
    if found.path_spec is not None:
        path_spec = rules.specs[found.path_spec]
        more = f" and {n:,} more" if (n := len(found.path_specs) - 1) else ""
        return path_spec.spec_for(rank), f"spec for {path_spec.pattern}{more}", None
    if found.rules:
        number = found.rules[0]
        rule = rules.rules[number]
        return rule.spec_for(rank), f"rule {number + 1}: {rule.pattern}", number
    if rules.logical and (axes := logical_names_of(found, rules)) is not None:
        spec = logical_spec(axes, rules, mesh)
        if spec is not None and group.axes is None and is_scale(group):
            # One number for 128 of its weight, which may be cut finer than that.
            spec = _dividing(spec, group.shape, mesh)
        if spec is not None:
            return spec, f"{LOGICAL} for {', '.join(filter(None, axes))}", None
    if group.spec is not None:
        return group.spec, OWN_SPEC, None
    if not mesh.shape.keys().isdisjoint(group.axes or ()):
        return spec_from_axis_names(group.axes or (), mesh), OWN_NAMES, None
    return Spec(), NO_RULE, None


def _dividing(spec: Spec, shape: tuple[int, ...], mesh: Mesh) -> Spec:
    """Return the spec without the array axes that do not divide."""
    sizes = zip(spec.axes, shape, strict=True)
    return Spec(
        *(() if size % prod(mesh.shape[name] for name in names) else names for names, size in sizes)
    )


def spec_from_axis_names(axes: LogicalAxes, mesh: Mesh) -> Spec:
    """Return the spec of an array whose author named mesh axes, or other things, or both.

    >>> spec_from_axis_names(("fsdp", "mlp"), Mesh(fsdp=2, tensor=4))
    Spec('fsdp', None)
    """
    return Spec(*(name if name in mesh.shape else None for name in axes))


def has_own_specs(model: Model, mesh: Mesh) -> bool:
    """Tell whether the author of a model said how any of it is cut over this mesh."""
    return any(
        group.spec is not None or not mesh.shape.keys().isdisjoint(group.axes or ())
        for group in model.groups
    )


def logical_names_of(found: RuleMatch, rules: Rules) -> LogicalAxes | None:
    """Return the logical names of the array axes: the model's own, or those that its path tells.

    Where an author named the axes of some tensors, the others have none: Flax leaves them whole.
    """
    group = found.group
    if group.axes is not None or not found.is_told:
        return group.axes
    told = infer_dim_meanings(group)
    return None if told is None else translate_meanings(told, rules)


def find_spec_error(spec: Spec, shape: tuple[int, ...], mesh: Mesh) -> LabError | None:
    """Return what is wrong with a spec for arrays of that rank on that mesh, whatever their sizes.

    Sizes that do not divide are for the plan to say: the bytes are known there.
    """
    try:
        shard_counts(spec, mesh)
        if len(spec) > len(shape):
            shard_shape(shape, spec, mesh)
    except LabError as error:
        return error
    return None
