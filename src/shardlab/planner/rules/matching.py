"""Applying rules: which spec each tensor of a model gets, and from which rule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Literal

from shardlab.errors import LabError
from shardlab.planner.memory.fp8_scales import is_scale
from shardlab.planner.model import Model
from shardlab.planner.plan import INVALID_SPEC_NOTE, SkippedSharding
from shardlab.planner.rules.logical_axes import logical_spec, translate_meanings
from shardlab.planner.rules.path_search import RuleMatch, match_paths
from shardlab.planner.rules.rules import Rules
from shardlab.planner.strategies.dim_meaning import infer_dim_meanings
from shardlab.planner.tensor_group import LogicalAxes, TensorGroup
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts, shard_shape
from shardlab.sharding.spec import Spec

SpecOrigin = Literal["path", "pattern", "logical", "model_spec", "model_axes", "none"]


@dataclass(frozen=True, kw_only=True)
class ResolvedSpec:
    """The spec of a tensor before it is checked, and the rule that it comes from."""

    spec: Spec
    origin: SpecOrigin
    rule: str  # as text: "rule 3: mlp/.*kernel", "no rule"
    rule_number: int | None = None  # of a pattern, from 0


@dataclass(frozen=True, kw_only=True)
class ShardedGroup:
    """A tensor group, or a subset of one, whose tensors have the same spec from the same rule."""

    group: TensorGroup
    spec: Spec
    rule: str  # as text: "rule 3: mlp/.*kernel", "strategy fsdp", "no rule"
    rule_number: int | None = None  # from 0; None if no pattern matched
    gradient_spec: Spec | None = None  # if it is not that of the parameter: ZeRO stage 2
    state_spec: Spec | None = None  # of optimizer states, if another: ZeRO stages 1 and 2
    declined: tuple[SkippedSharding, ...] = ()  # not sharded because not divisible


def match_rules(model: Model, rules: Rules, mesh: Mesh) -> Iterator[ShardedGroup]:
    """Yield every tensor of the model once, in groups split by the rule that applies."""
    return apply_rules(match_paths(model, rules), rules, mesh)


def apply_rules(matches: Iterable[RuleMatch], rules: Rules, mesh: Mesh) -> Iterator[ShardedGroup]:
    """Yield matched groups with their specs; a spec that is invalid counts as replicated."""
    for match in matches:
        resolved = resolve_spec(match, rules, mesh)
        spec, rule = resolved.spec, resolved.rule
        # Not an error here: the plan goes on with the tensor replicated, and lint reports it.
        if find_spec_error(spec, match.group.shape, mesh) is not None:
            spec, rule = Spec(), rule + INVALID_SPEC_NOTE
        yield ShardedGroup(
            group=match.group, spec=spec, rule=rule, rule_number=resolved.rule_number
        )


def resolve_spec(match: RuleMatch, rules: Rules, mesh: Mesh) -> ResolvedSpec:
    """Return the spec from the first source that has one, in the order documented in `rules`."""
    group, rank = match.group, len(match.group.shape)
    if match.path_spec is not None:
        path_spec = rules.specs[match.path_spec]
        n_further = len(match.path_specs) - 1
        return ResolvedSpec(
            spec=path_spec.spec_for(rank),
            origin="path",
            rule=f"spec for {path_spec.pattern}"
            + (f" and {n_further:,} more" if n_further else ""),
        )
    if match.rules:
        number = match.rules[0]
        rule = rules.rules[number]
        return ResolvedSpec(
            spec=rule.spec_for(rank),
            origin="pattern",
            rule=f"rule {number + 1}: {rule.pattern}",
            rule_number=number,
        )
    if rules.logical and (axes := logical_names_of(match, rules)) is not None:
        spec = logical_spec(axes, rules, mesh)
        if spec is not None and group.axes is None and is_scale(group):
            # An fp8 scale has one number per 128 weights, and the weights may be sharded finer.
            spec = _drop_indivisible(spec, group.shape, mesh)
        if spec is not None:
            names = ", ".join(filter(None, axes))
            return ResolvedSpec(spec=spec, origin="logical", rule=f"logical rules for {names}")
    if group.spec is not None:
        return ResolvedSpec(spec=group.spec, origin="model_spec", rule="the model's own spec")
    if not mesh.shape.keys().isdisjoint(group.axes or ()):
        spec = spec_from_axis_names(group.axes or (), mesh)
        return ResolvedSpec(spec=spec, origin="model_axes", rule="the model's own axis names")
    return ResolvedSpec(spec=Spec(), origin="none", rule="no rule")


def _drop_indivisible(spec: Spec, shape: tuple[int, ...], mesh: Mesh) -> Spec:
    """Return the spec without the mesh axes of dimensions that are not divisible."""
    return Spec(
        *(
            () if size % prod(mesh.shape[name] for name in names) else names
            for names, size in zip(spec.axes, shape, strict=True)
        )
    )


def spec_from_axis_names(axes: LogicalAxes, mesh: Mesh) -> Spec:
    """Return the spec of an array whose author named mesh axes, logical axes, or both.

    >>> spec_from_axis_names(("fsdp", "mlp"), Mesh(fsdp=2, tensor=4))
    Spec('fsdp', None)
    """
    return Spec(*(name if name in mesh.shape else None for name in axes))


def has_own_specs(model: Model, mesh: Mesh) -> bool:
    """Return whether the author of a model declared shardings for this mesh."""
    return any(
        group.spec is not None or not mesh.shape.keys().isdisjoint(group.axes or ())
        for group in model.groups
    )


def logical_names_of(match: RuleMatch, rules: Rules) -> LogicalAxes | None:
    """Return the logical names of the dimensions: the model's own, or inferred from the path.

    If the author named the axes of some tensors, the others have none: Flax replicates them.
    """
    group = match.group
    if group.axes is not None or not match.can_infer_axes:
        return group.axes
    meanings = infer_dim_meanings(group)
    return None if meanings is None else translate_meanings(meanings, rules)


def find_spec_error(spec: Spec, shape: tuple[int, ...], mesh: Mesh) -> LabError | None:
    """Return why a spec is invalid for arrays of that rank on that mesh, whatever their sizes.

    Sizes that are not divisible are reported with the plan, which knows the bytes.
    """
    try:
        # shard_counts checks the mesh axes alone; shard_shape would also raise for sizes.
        shard_counts(spec, mesh)
        if len(spec) > len(shape):
            shard_shape(shape, spec, mesh)
    except LabError as error:
        return error
    return None
