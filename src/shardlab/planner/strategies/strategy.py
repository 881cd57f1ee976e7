"""Strategies: names such as fsdp+tensor for well-known sharding schemes.

>>> parse_strategy("fsdp+tp").parts, parse_strategy("zero1").zero_stage
(('tensor', 'fsdp'), 1)

| part          | what it shards, and over which mesh axes (by role: axis_roles.py)                |
|---------------|----------------------------------------------------------------------------------|
| data-parallel | nothing: every device stores the full model, and the batch is sharded            |
| fsdp          | matrices along `embed`, else the largest divisible dimension; over fsdp or data, |
|               | and over context                                                                 |
| tensor        | attention by heads, feed-forward layers along `mlp`, embeddings along `vocab`    |
| expert        | the experts of a mixture, stacked along one dimension (layer_stack.py)           |
| wide-expert   | the same over expert and tensor axes together, each expert unsharded: Megatron's |
|               | expert tensor size 1. The other matrices stay sharded by `tensor`                |
| pipeline      | the stacked layers, over stages; embeddings are stored on every stage            |
| zero1         | optimizer states, over all mesh axes that shard tokens: data, fsdp, expert,      |
|               | context                                                                          |
| zero2         | also the gradients                                                               |
| zero3         | also the parameters: fsdp over all of these mesh axes                            |

Norm scales and biases have one dimension and are small: fsdp replicates them, as MaxText does and
as DeepSpeed does with the small parameters of stage 3; tensor shards the biases of the layers that
it shards along the output, as Megatron does. With experts, fsdp shards all other matrices over the
expert axes too, because these axes shard the batch, as in MaxText. A spec always divides the shape:
a dimension that is not divisible is replicated or another one is sharded, and
`ShardedGroup.declined` lists it. Only stages may have different numbers of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.errors import InvalidType, UnknownMeshAxis, UnknownOption, short_repr
from shardlab.planner.model import Model
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.strategies.axis_roles import BATCH_ROLES, ROLES, mesh_axis_roles
from shardlab.planner.strategies.layer_stack import merge_stack_options, stack_model
from shardlab.planner.strategies.tensor_sharding import TensorSharder
from shardlab.sharding.mesh import Mesh

# part -> other names in use
_ALIASES = {
    "data-parallel": ("data", "dp", "ddp", "data_parallel", "replicated"),
    "fsdp": ("fully-sharded", "fully_sharded"),
    "tensor": ("tp", "model", "megatron", "tensor-parallel", "tensor_parallel"),
    "expert": ("ep", "experts", "moe", "expert-parallel", "expert_parallel"),
    "wide-expert": ("wide-ep", "wide_ep", "wide_expert", "etp1", "expert-tensor-1"),
    "pipeline": ("pp", "pipe", "stage", "stages", "pipeline-parallel", "pipeline_parallel"),
    "zero1": ("zero-1", "zero_1"),
    "zero2": ("zero-2", "zero_2"),
    "zero3": ("zero-3", "zero_3"),
}
_PARTS = {name: part for part, names in _ALIASES.items() for name in (part, *names)}
# part -> alternatives of roles; the first alternative that the mesh has is used
_PART_ROLES = {
    "data-parallel": (BATCH_ROLES,),
    "fsdp": (("fsdp",), ("data",)),
    "tensor": (("tensor",),),
    "expert": (("expert",),),
    "wide-expert": (("expert", "tensor"),),
    "pipeline": (("stage",),),
    "zero": ((*BATCH_ROLES, "sequence"),),  # Megatron's distributed optimizer: data and context
}
# Order of assignment. Tensor and expert parallelism need particular dimensions (heads, experts);
# fsdp can use any, so it comes last.
_ASSIGNMENT_ORDER = ("pipeline", "expert", "wide-expert", "tensor", "fsdp")
_NAME_ORDER = ("fsdp", "expert", "wide-expert", "tensor", "pipeline")
_STACKED_DIMS = {
    "expert": "experts",
    "wide-expert": "experts",
    "pipeline": "layers",
}  # part -> what it needs in one array


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A parsed strategy: the parts that shard parameters, in order, and the ZeRO stage.

    Stage 1 shards optimizer states, stage 2 also gradients, stage 3 also parameters.
    """

    name: str
    parts: tuple[str, ...]
    zero_stage: int = 0
    # ZeRO shards one flat buffer, as Megatron's distributed optimizer does and DeepSpeed: every
    # device gets its share whatever the shapes are. Otherwise a dimension has to be divisible.
    flat_states: bool = False

    def __str__(self) -> str:
        return self.name


def parse_strategy(strategy: Any) -> Strategy:
    """Return the strategy of a name such as `fsdp+tensor`; a `Strategy` is returned unchanged."""
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str):
        raise InvalidType(
            f"{short_repr(strategy)} is not a strategy.", fix='use a name such as "fsdp+tensor".'
        )
    return _parse_name(strategy)


@lru_cache(maxsize=256)
def _parse_name(name: str) -> Strategy:
    parts = []
    for word in name.split("+"):
        if (part := _PARTS.get(word.strip().lower())) is None:
            raise _unknown_strategy_error(word.strip(), name)
        parts.append(part)
    zero_stage = max((int(part[4:]) for part in parts if part.startswith("zero")), default=0)
    return Strategy(name=name, parts=_ordered_parts(parts, zero_stage), zero_stage=zero_stage)


def make_strategy(parts: Iterable[str], zero_stage: int = 0) -> Strategy:
    """Return the strategy with these parts and that ZeRO stage, under its common name.

    >>> make_strategy(("fsdp", "tensor")) == parse_strategy("fsdp+tensor")
    True
    """
    parts = tuple(parts)
    return Strategy(
        name=strategy_name(parts, zero_stage),
        parts=_ordered_parts(parts, zero_stage),
        zero_stage=zero_stage,
    )


def _ordered_parts(parts: Iterable[str], zero_stage: int) -> tuple[str, ...]:
    # ZeRO stage 3 shards parameters as fsdp does, only over more mesh axes.
    sharding_parts = {*parts, "fsdp"} if zero_stage == 3 else set(parts)
    return tuple(part for part in _ASSIGNMENT_ORDER if part in sharding_parts)


def strategy_name(parts: Iterable[str], zero_stage: int = 0) -> str:
    """Return the common name of these parts with that ZeRO stage.

    >>> strategy_name(("tensor", "fsdp")), strategy_name(("tensor", "fsdp"), zero_stage=3)
    ('fsdp+tensor', 'tensor+zero3')
    """
    part_names = [part for part in _NAME_ORDER if part in set(parts)]
    if zero_stage == 3 and "fsdp" in part_names:
        part_names.remove("fsdp")  # implied by stage 3
    return (
        "+".join([*part_names, *([f"zero{zero_stage}"] if zero_stage else [])]) or "data-parallel"
    )


def shard_model(model: Model, strategy: Strategy, mesh: Mesh) -> Iterator[ShardedGroup]:
    """Yield every tensor group of the model with the specs that the strategy gives it.

    `expert` first stacks the experts of a mixture, `pipeline` the layers.
    """
    axes_by_part = strategy_mesh_axes(strategy, mesh)
    # Devices of a context axis have different tokens and the same weights, as those of a batch
    # axis: MaxText's rules and torchtitan's dp_shard_cp shard weights over both.
    sequence_axes = tuple(
        name
        for name in mesh_axis_roles(mesh).get("sequence", ())
        if mesh.shape[name] > 1 and name not in axes_by_part.get("fsdp", ())
    )
    expert_axes = tuple(
        name for name in mesh_axis_roles(mesh).get("expert", ()) if mesh.shape[name] > 1
    )
    has_expert_axis = not {"expert", "wide-expert"}.isdisjoint(strategy.parts)
    for group in stack_for_strategy(strategy, model).groups:
        sharder = TensorSharder(group, mesh, model.architecture)
        for part in strategy.parts:
            names = axes_by_part[part]
            if part == "fsdp" and names:
                names = (*names, *sequence_axes)
            if part == "fsdp" and has_expert_axis and not sharder.has_meaning("experts"):
                names = tuple(dict.fromkeys((*names, *expert_axes)))
            sharder.shard_for_part(part, names)
        sharded = ShardedGroup(
            group=group,
            spec=sharder.spec,
            rule=f"strategy {strategy.name}",
            declined=tuple(sharder.skipped),
        )
        if strategy.zero_stage:
            sharded = _with_zero(sharded, sharder, strategy, axes_by_part["zero"])
        yield sharded


def stack_for_strategy(strategy: Strategy, model: Model) -> Model:
    """Return the model with the experts or layers stacked that the strategy shards."""
    option = stack_option_for(strategy)
    return model if option is None else stack_model(model, option)


def stack_option_for(strategy: Strategy | str) -> str | None:
    """Return the stack option that a strategy needs: "experts", "layers", "all" or None."""
    parts = parse_strategy(strategy).parts
    return merge_stack_options(*(dim for part, dim in _STACKED_DIMS.items() if part in parts))


def shard_optimizer_states(
    sharded_groups: Iterable[ShardedGroup], strategy: Strategy, mesh: Mesh
) -> Iterator[ShardedGroup]:
    """Yield groups sharded by rules, with optimizer states (and gradients) sharded by ZeRO."""
    axes_by_part = strategy_mesh_axes(strategy, mesh)
    for sharded in sharded_groups:
        if strategy.zero_stage:
            sharder = TensorSharder(sharded.group, mesh, None, sharded.spec)
            yield _with_zero(sharded, sharder, strategy, axes_by_part["zero"])
        else:
            yield sharded


def _with_zero(
    sharded: ShardedGroup, sharder: TensorSharder, strategy: Strategy, names: tuple[str, ...]
) -> ShardedGroup:
    stage = strategy.zero_stage
    sharder.shard_for_part("zero", names, pads=strategy.flat_states)
    if sharder.spec == sharded.spec:
        return replace(sharded, declined=tuple(sharder.skipped))
    return replace(
        sharded,
        gradient_spec=sharder.spec if stage > 1 else None,
        state_spec=sharder.spec,
        declined=tuple(sharder.skipped),
    )


def strategy_mesh_axes(strategy: Strategy, mesh: Mesh) -> Mapping[str, tuple[str, ...]]:
    """Return the mesh axes of each part, without those of size 1, which shard nothing.

    >>> strategy_mesh_axes(parse_strategy("fsdp+tensor"), Mesh(data=4, fsdp=8, model=2))
    {'tensor': ('model',), 'fsdp': ('fsdp',)}
    """
    parts = [*strategy.parts, *(["zero"] if strategy.zero_stage else [])] or ["data-parallel"]
    axes_by_part = {part: _part_mesh_axes(part, strategy, mesh) for part in parts}
    if strategy.zero_stage == 3:
        axes_by_part["fsdp"] = axes_by_part["zero"]
    return axes_by_part


def _part_mesh_axes(part: str, strategy: Strategy, mesh: Mesh) -> tuple[str, ...]:
    roles = mesh_axis_roles(mesh)
    for alternative in _PART_ROLES[part]:
        if names := {name for role in alternative for name in roles.get(role, ())}:
            return tuple(name for name in mesh.axis_names if name in names and mesh.shape[name] > 1)
    if part == "fsdp" and strategy.zero_stage == 3:
        return ()  # replaced by the axes of zero
    raise _missing_axis_error(part, strategy, mesh, roles)


def _missing_axis_error(
    part: str, strategy: Strategy, mesh: Mesh, roles: Mapping[str, tuple[str, ...]]
) -> UnknownMeshAxis:
    """Return the error for a mesh without an axis for a part, with a corrected mesh."""
    suitable = [
        name
        for alternative in _PART_ROLES[part]
        for role in alternative
        for name in ROLES[role][:3]
    ]
    axes_with_role = {name for names in roles.values() for name in names}
    axis_names = ", ".join(map(repr, mesh.axis_names)) or "none"
    example = _mesh_with_axis(mesh, suitable[0], axes_with_role)
    return UnknownMeshAxis(
        f"The strategy {strategy.name!r:.80} needs a mesh axis for its part {part!r}, "
        "but the mesh has none.",
        where=f"mesh {mesh}, whose axes are {axis_names}",
        fix=f"name an axis {', '.join(suitable[:-1])} or {suitable[-1]}, as in {example}.",
    )


def _mesh_with_axis(mesh: Mesh, axis: str, axes_with_role: set[str]) -> str:
    """Return the mesh text with that axis: in place of the first axis without a role, or added."""
    replaceable = next((name for name in mesh.axis_names if name not in axes_with_role), None)
    pairs = [f"{axis if name == replaceable else name}={n}" for name, n in mesh.shape.items()]
    return ",".join(pairs if replaceable else [*pairs, f"{axis}=…"])


def _unknown_strategy_error(word: str, name: str) -> UnknownOption:
    suggestion = nearest_name(word, _PARTS)
    return UnknownOption(
        f"Unknown strategy {word!r:.80}. Known strategies: {', '.join(_ALIASES)}, "
        "and combinations with +.",
        where=f"strategy {short_repr(name, 200)}",
        fix=f"Did you mean {suggestion!r}?" if suggestion else "use a name such as 'fsdp+tensor'.",
    )
