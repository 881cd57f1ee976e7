"""Matching: which rule takes which tensors of a family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from shardlab.errors import LabError
from shardlab.planner.family import Axes, Family
from shardlab.planner.memory.fp8_scales import is_scale
from shardlab.planner.model import Model
from shardlab.planner.plan import SkippedSharding
from shardlab.planner.rules.logical_axes import called, logical_spec
from shardlab.planner.rules.path_search import Found, search
from shardlab.planner.rules.rules import Rules
from shardlab.planner.strategies.dim_meaning import told_axes
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts, shard_shape
from shardlab.sharding.spec import Spec

NO_RULE = "no rule"
OWN_SPEC = "the model's own spec"
OWN_NAMES = "the model's own axis names"
LOGICAL = "logical rules"


@dataclass(frozen=True, kw_only=True)
class ShardedFamily:
    """A family, or the part of one, whose tensors all have the same spec for the same reason."""

    family: Family
    spec: Spec
    rule: str  # in words: "rule 3: mlp/.*kernel", "strategy fsdp", "no rule"
    number: int | None = None  # of the rule, from 0; None where no rule matched
    gradient_spec: Spec | None = None  # where not that of the parameter: ZeRO stage 2
    state_spec: Spec | None = None  # of the optimizer's arrays, where not that: ZeRO stages 1 and 2
    declined: tuple[SkippedSharding, ...] = ()  # what a strategy would have cut, were it divisible


def match(model: Model, rules: Rules, mesh: Mesh) -> Iterator[ShardedFamily]:
    """Yield every tensor of the model once, in families split by the rule that takes them."""
    return placed_by(search(model, rules), rules, mesh)


def placed_by(found: Iterable[Found], rules: Rules, mesh: Mesh) -> Iterator[ShardedFamily]:
    """Yield what was found with the specs that the rules give; one that misfits counts as none."""
    for each in found:
        spec, words, number = given_spec(each, rules, mesh)
        if misfit(spec, each.family.shape, mesh) is not None:
            spec, words = Spec(), f"{words}, which does not fit"
        yield ShardedFamily(family=each.family, spec=spec, rule=words, number=number)


def given_spec(found: Found, rules: Rules, mesh: Mesh) -> tuple[Spec, str, int | None]:
    """Return the spec that the first of the rules gives, that rule in words, and its number."""
    family, rank = found.family, len(found.family.shape)
    if found.path_spec is not None:
        path_spec = rules.specs[found.path_spec]
        more = f" and {n:,} more" if (n := len(found.path_specs) - 1) else ""
        return path_spec.spec_for(rank), f"spec for {path_spec.pattern}{more}", None
    if found.rules:
        number = found.rules[0]
        rule = rules.rules[number]
        return rule.spec_for(rank), f"rule {number + 1}: {rule.pattern}", number
    if rules.logical and (axes := names_of(found, rules)) is not None:
        spec = logical_spec(axes, rules, mesh)
        if spec is not None and family.axes is None and is_scale(family):
            # One number for 128 of its weight, which may be cut finer than that.
            spec = _dividing(spec, family.shape, mesh)
        if spec is not None:
            return spec, f"{LOGICAL} for {', '.join(filter(None, axes))}", None
    if family.spec is not None:
        return family.spec, OWN_SPEC, None
    if not mesh.shape.keys().isdisjoint(family.axes or ()):
        return own_spec(family.axes or (), mesh), OWN_NAMES, None
    return Spec(), NO_RULE, None


def _dividing(spec: Spec, shape: tuple[int, ...], mesh: Mesh) -> Spec:
    """Return the spec without the array axes that do not divide."""
    sizes = zip(spec.axes, shape, strict=True)
    return Spec(
        *(() if size % prod(mesh.shape[name] for name in names) else names for names, size in sizes)
    )


def own_spec(axes: Axes, mesh: Mesh) -> Spec:
    """Return the spec of an array whose author named mesh axes, or other things, or both.

    >>> own_spec(("fsdp", "mlp"), Mesh(fsdp=2, tensor=4))
    Spec('fsdp', None)
    """
    return Spec(*(name if name in mesh.shape else None for name in axes))


def has_own_specs(model: Model, mesh: Mesh) -> bool:
    """Tell whether the author of a model said how any of it is cut over this mesh."""
    return any(
        family.spec is not None or not mesh.shape.keys().isdisjoint(family.axes or ())
        for family in model.families
    )


def names_of(found: Found, rules: Rules) -> Axes | None:
    """Return the logical names of the array axes: the model's own, or those that its path tells.

    Where an author named the axes of some tensors, the others have none: Flax leaves them whole.
    """
    family = found.family
    if family.axes is not None or not found.is_told:
        return family.axes
    told = told_axes(family)
    return None if told is None else called(told, rules)


def misfit(spec: Spec, shape: tuple[int, ...], mesh: Mesh) -> LabError | None:
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
