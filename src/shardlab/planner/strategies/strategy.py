"""Strategies: names such as fsdp+tensor for the specs that everybody means by them.

>>> parse_strategy("fsdp+tp").parts, parse_strategy("zero1").zero_stage
(('tensor', 'fsdp'), 1)

| part          | what it cuts, and over which mesh axes (by their roles: roles.py)                |
|---------------|----------------------------------------------------------------------------------|
| data-parallel | nothing: every device holds the whole model, and the batch is cut                |
| fsdp          | matrices along `embed`, else their largest axis that divides; over fsdp, or data |
| tensor        | attention by whole heads, feed-forward parts along `mlp`, tables along `vocab`   |
| expert        | the experts of a mixture, stacked on one array axis (stack.py)                   |
| pipeline      | the layers, stacked on one array axis, over stages; tables stay on every stage   |
| zero1         | the optimizer's arrays over all axes that cut the batch: data, fsdp, expert      |
| zero2         | and the gradients                                                                |
| zero3         | and the parameters: fsdp over all of these axes                                  |

Norm scales and biases have one axis and are small: fsdp leaves them whole, as MaxText does and as
DeepSpeed does with stage 3's small parameters; tensor cuts the biases of what it cuts along the
output, as Megatron does. With experts, fsdp cuts all other matrices over the expert axes too, along
which the batch is cut, as MaxText does. A spec always divides: what does not is left whole or cut
elsewhere, and `Placed.declined` says so.
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
from shardlab.planner.strategies.layer_stack import stack_model, merge_stack_options
from shardlab.planner.strategies.tensor_sharding import TensorSharder
from shardlab.sharding.mesh import Mesh

# part -> other names that people give it
_ALIASES = {
    "data-parallel": ("data", "dp", "ddp", "data_parallel", "replicated"),
    "fsdp": ("fully-sharded", "fully_sharded"),
    "tensor": ("tp", "model", "megatron", "tensor-parallel", "tensor_parallel"),
    "expert": ("ep", "experts", "moe", "expert-parallel", "expert_parallel"),
    "pipeline": ("pp", "pipe", "stage", "stages", "pipeline-parallel", "pipeline_parallel"),
    "zero1": ("zero-1", "zero_1"),
    "zero2": ("zero-2", "zero_2"),
    "zero3": ("zero-3", "zero_3"),
}
_PARTS = {name: part for part, names in _ALIASES.items() for name in (part, *names)}
# part -> roles of the mesh axes it cuts over, each list the next choice where the mesh lacks one
_OVER = {
    "data-parallel": (BATCH_ROLES,),
    "fsdp": (("fsdp",), ("data",)),
    "tensor": (("tensor",),),
    "expert": (("expert",),),
    "pipeline": (("stage",),),
    "zero": (BATCH_ROLES,),
}
# heads and experts first: fsdp takes what is left
_ORDER = ("pipeline", "expert", "tensor", "fsdp")
_STACKED = {"expert": "experts", "pipeline": "layers"}  # part -> what it needs in one array


@dataclass(frozen=True)
class Strategy:
    """The parts that cut parameters, in order, and the ZeRO stage: 1 states, 2 gradients, 3 all."""

    name: str
    parts: tuple[str, ...]
    zero_stage: int = 0


@lru_cache(maxsize=256)
def _parsed(name: str) -> Strategy:
    parts = []
    for word in name.split("+"):
        if (part := _PARTS.get(word.strip().lower())) is None:
            raise _unknown(word.strip(), name)
        parts.append(part)
    zero = max((int(part[4:]) for part in parts if part.startswith("zero")), default=0)
    cutting = {*parts, "fsdp"} if zero == 3 else set(parts)
    return Strategy(name, tuple(part for part in _ORDER if part in cutting), zero)


def parse_strategy(name: Any) -> Strategy:
    """Return the strategy of a name such as `fsdp+tensor` or `zero1`."""
    if isinstance(name, Strategy):
        return name
    if not isinstance(name, str):
        raise InvalidType(
            f"{short_repr(name)} is not a strategy.", fix='a name such as "fsdp+tensor".'
        )
    return _parsed(name)


def strategy_name(parts: Iterable[str], zero_stage: int = 0) -> str:
    """Return the name that people give these parts with that ZeRO stage.

    >>> strategy_name(("tensor", "fsdp")), strategy_name(("tensor", "fsdp"), zero_stage=3)
    ('fsdp+tensor', 'tensor+zero3')
    """
    named = [part for part in ("fsdp", "expert", "tensor", "pipeline") if part in set(parts)]
    if zero_stage == 3 and "fsdp" in named:
        named.remove("fsdp")  # which stage 3 is, over more axes
    return "+".join([*named, *([f"zero{zero_stage}"] if zero_stage else [])]) or "data-parallel"


def shard_model(model: Model, strategy: Strategy, mesh: Mesh) -> Iterator[ShardedGroup]:
    """Yield every family of the model with the specs that the strategy gives it.

    With `expert` the experts of a mixture are stacked first, with `pipeline` the layers.
    """
    over = strategy_mesh_axes(strategy, mesh)
    for group in stack_for_strategy(strategy, model).groups:
        cutting = TensorSharder(group, mesh, model.architecture)
        for part in strategy.parts:
            names = over[part]
            if part == "fsdp" and "expert" in over and not cutting.has("experts"):
                names = tuple(dict.fromkeys((*names, *over["expert"])))
            cutting.cut(part, names)
        words = f"strategy {strategy.name}"
        placed = ShardedGroup(
            group=group, spec=cutting.spec, rule=words, declined=tuple(cutting.declined)
        )
        yield (
            _with_zero(placed, cutting, strategy.zero_stage, over["zero"])
            if strategy.zero_stage
            else placed
        )


def stack_for_strategy(strategy: Strategy, model: Model) -> Model:
    """Return the model with that in one array which the strategy cuts there."""
    over = stack_option_for(strategy)
    return model if over is None else stack_model(model, over)


def stack_option_for(strategy: Strategy | str) -> str | None:
    """Return what a strategy cuts, and so needs in one array each."""
    parts = parse_strategy(strategy).parts
    return merge_stack_options(*(what for part, what in _STACKED.items() if part in parts))


def shard_optimizer_states(
    placed: Iterable[ShardedGroup], strategy: Strategy, mesh: Mesh
) -> Iterator[ShardedGroup]:
    """Yield what rules have placed with the states, or the gradients too, cut as ZeRO cuts them."""
    over = strategy_mesh_axes(strategy, mesh)
    for each in placed:
        cutting = TensorSharder(each.group, mesh, None, each.spec)
        yield (
            _with_zero(each, cutting, strategy.zero_stage, over["zero"])
            if strategy.zero_stage
            else each
        )


def _with_zero(
    placed: ShardedGroup, cutting: TensorSharder, stage: int, names: tuple[str, ...]
) -> ShardedGroup:
    cutting.cut("zero", names)
    if cutting.spec == placed.spec:
        return replace(placed, declined=tuple(cutting.declined))
    return replace(
        placed,
        gradient_spec=cutting.spec if stage > 1 else None,
        state_spec=cutting.spec,
        declined=tuple(cutting.declined),
    )


def strategy_mesh_axes(strategy: Strategy, mesh: Mesh) -> Mapping[str, tuple[str, ...]]:
    """Return the mesh axes that each part cuts over; those of size 1 cut nothing and are left out.

    >>> strategy_mesh_axes(parse_strategy("fsdp+tensor"), Mesh(data=4, fsdp=8, model=2))
    {'tensor': ('model',), 'fsdp': ('fsdp',)}
    """
    parts = [*strategy.parts, *(["zero"] if strategy.zero_stage else [])] or ["data-parallel"]
    over = {part: _mesh_axes(part, strategy, mesh) for part in parts}
    if strategy.zero_stage == 3:
        over["fsdp"] = over["zero"]
    return over


def _mesh_axes(part: str, strategy: Strategy, mesh: Mesh) -> tuple[str, ...]:
    roles = mesh_axis_roles(mesh)
    for choice in _OVER[part]:
        if names := {name for role in choice for name in roles.get(role, ())}:
            return tuple(each for each in mesh.axis_names if each in names and mesh.shape[each] > 1)
    if part == "fsdp" and strategy.zero_stage == 3:
        return ()  # the axes of zero take its place
    wanted = [name for choice in _OVER[part] for role in choice for name in ROLES[role][:3]]
    example = _with_axis(mesh, wanted[0], {name for names in roles.values() for name in names})
    known = ", ".join(map(repr, mesh.axis_names)) or "none"
    raise UnknownMeshAxis(
        f"The strategy {strategy.name!r:.80} needs a mesh axis to cut over for its part "
        f"{part!r}, and the mesh has none of that name.",
        where=f"mesh {mesh}, whose axes are {known}",
        fix=f"name an axis {', '.join(wanted[:-1])} or {wanted[-1]}, as in {example}.",
    )


def _with_axis(mesh: Mesh, wanted: str, known: set[str]) -> str:
    """Return the mesh as text with that axis: a new one, or in place of one without a role."""
    strange = next((name for name in mesh.axis_names if name not in known), None)
    pairs = [f"{wanted if name == strange else name}={n}" for name, n in mesh.shape.items()]
    return ",".join(pairs if strange else [*pairs, f"{wanted}=…"])


def _unknown(word: str, name: str) -> UnknownOption:
    near = nearest_name(word, _PARTS)
    return UnknownOption(
        f"There is no strategy {word!r:.80}; there is {', '.join(_ALIASES)}, "
        "and any of them joined with +.",
        where=f"strategy {short_repr(name, 200)}",
        fix=f"{near!r}, the nearest name." if near else "such as 'fsdp+tensor'.",
    )
