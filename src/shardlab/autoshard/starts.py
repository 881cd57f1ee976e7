"""Well-known shardings of a program, where the search starts and what its answer is compared with.

| name          | batch arguments       | parameters and optimizer states                          |
|---------------|-----------------------|----------------------------------------------------------|
| replicated    | replicated            | replicated                                               |
| data parallel | dimension 0, all axes | replicated                                               |
| FSDP          | dimension 0, all axes | largest divisible dimension, all axes                    |
| Megatron      | dimension 0, data     | columns or rows, by shape and name, over model           |
| FSDP+Megatron | dimension 0, data     | as Megatron, and another dimension over data             |

FSDP comes with constraints that keep activations sharded along the batch, on what scans carry or,
without a scan, on all points: without them Shardy, like XLA, shards activations as the parameters.
The names are only a start for the search, so a table of the usual ones is enough; those of
`planner/strategies` are for one layer's weights in the layout of a known framework.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from shardlab.autoshard.arguments import Group
from shardlab.autoshard.evaluation import Assignment, replicate_all
from shardlab.autoshard.spec_choices import DimAxes, MeshSizes, divides, replicated

_MIN_DIMS = 2  # scales and biases stay replicated
_MIN_BYTES = 2**16
_MIN_PARAMETERS = 2


def make_starts(groups: Sequence[Group], mesh: MeshSizes) -> Iterator[tuple[str, Assignment]]:
    """Yield names and assignments of the shardings that this mesh allows."""
    axes = tuple(name for name, size in mesh if size > 1)
    groups = _mark_parameters(groups)
    yield "replicated", replicate_all(groups)
    if not axes:
        return
    yield "data parallel", _assign(groups, mesh, axes, shard_weights=())
    yield "FSDP", _assign(groups, mesh, axes, shard_weights=axes)
    if len(axes) == 1:
        # Megatron without data parallelism.
        yield "Megatron", _with_megatron(_assign(groups, mesh, (), ()), groups, mesh, axes[0])
        return
    data, model = axes[:-1], axes[-1]
    megatron = _with_megatron(_assign(groups, mesh, data, ()), groups, mesh, model)
    yield "Megatron", megatron
    yield "FSDP+Megatron", _with_fsdp(megatron, groups, mesh, data)


def _mark_parameters(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the groups with the parameters of an inference step or a loss as state.

    Where nothing comes back as state, the first argument counts as parameters if it has several
    arrays and is not the only argument.
    """
    arguments = [group for group in groups if group.point is None]
    roots = [_argument_of(group) for group in arguments]
    is_single = roots.count(roots[0]) < _MIN_PARAMETERS if roots else True
    if is_single or len(set(roots)) == 1 or any(group.is_state for group in arguments):
        return groups
    return [
        replace(group, is_state=True)
        if group.point is None and _argument_of(group) == roots[0]
        else group
        for group in groups
    ]


def _argument_of(group: Group) -> str:
    """Return the name of the argument that an array belongs to: params of params['up']."""
    return re.split(r"[\[.]", group.name, maxsplit=1)[0]


def _assign(
    groups: Sequence[Group], mesh: MeshSizes, batch: tuple[str, ...], shard_weights: tuple[str, ...]
) -> Assignment:
    sizes = dict(mesh)
    batch_sizes = _batch_sizes(groups)
    choices: list[DimAxes | None] = []
    for group, default in zip(groups, replicate_all(groups), strict=True):
        choice = default
        if group.point is not None:
            if shard_weights and _is_constrained(group, groups):
                choice = _batch_axes(group.shape, batch, sizes, batch_sizes)
        elif group.is_fixed:
            choice = group.annotated
        elif not group.is_state and batch:
            choice = _batch_axes(group.shape, batch, sizes, batch_sizes) or default
        elif group.is_state and shard_weights:
            choice = _shard_largest(replicated(group.shape), group, shard_weights, sizes)
        choices.append(choice)
    return tuple(choices)


def _is_constrained(group: Group, groups: Sequence[Group]) -> bool:
    return group.is_carry or not any(other.is_carry for other in groups)


def _batch_sizes(groups: Sequence[Group]) -> frozenset[int]:
    """Return the sizes of dimension 0 of the arguments that are not state."""
    return frozenset(
        group.shape[0]
        for group in groups
        if group.point is None and not group.is_state and group.shape
    )


def _batch_axes(
    shape: tuple[int, ...],
    names: tuple[str, ...],
    sizes: dict[str, int],
    batch_sizes: frozenset[int],
) -> DimAxes | None:
    """Return dimension 0 sharded over the axes that divide it; None if it is no batch."""
    if not shape or not any(shape[0] % size == 0 for size in batch_sizes):
        return None
    while names and shape[0] % prod(sizes[name] for name in names):
        names = names[:-1]
    return (names, *((),) * (len(shape) - 1)) if names else None


def _shard_largest(
    axes: DimAxes, group: Group, names: tuple[str, ...], sizes: dict[str, int]
) -> DimAxes:
    """Shard the largest dimension that is divisible and not sharded yet."""
    if len(group.shape) < _MIN_DIMS or group.n_bytes < _MIN_BYTES:
        return axes
    by_size = sorted(range(len(group.shape)), key=lambda dim: (-group.shape[dim], dim))
    for dim in by_size:
        if not axes[dim]:
            sharded = tuple(names if i == dim else entry for i, entry in enumerate(axes))
            if divides(sharded, group.shape, sizes):
                return sharded
    return axes


def _with_fsdp(
    assignment: Assignment, groups: Sequence[Group], mesh: MeshSizes, data: tuple[str, ...]
) -> Assignment:
    sizes, batch_sizes = dict(mesh), _batch_sizes(groups)
    choices: list[DimAxes | None] = []
    for group, choice in zip(groups, assignment, strict=True):
        if group.point is not None:
            if group.is_carry:  # other points may be sharded over the model axis
                choice = _batch_axes(group.shape, data, sizes, batch_sizes)
        elif group.is_state and not group.is_fixed and choice is not None:
            choice = _shard_largest(choice, group, data, sizes)
        choices.append(choice)
    return tuple(choices)


# The last part of a path -> column parallel (the last dimension) or row parallel (the one before).
_COLUMN = re.compile(
    r"(w?[qkv]|qkv|query|key|value|q_proj|k_proj|v_proj|wq|wk|wv|up\w*|gate\w*|wi\w*|w1|w3|fc1|c_fc|"
    r"c_attn|in_proj|\w*head|logits)$"
)
_ROW = re.compile(r"(o|wo|out|o_proj|out_proj|proj|c_proj|down\w*|w2|fc2)$")
_GENERIC = ("kernel", "weight", "w", "value", "embedding", "table")


def _with_megatron(
    assignment: Assignment, groups: Sequence[Group], mesh: MeshSizes, model: str
) -> Assignment:
    """Shard matrices over the model axis: wide ones by columns, narrow ones by rows."""
    sizes = dict(mesh)
    choices = list(assignment)
    for index, group in enumerate(groups):
        is_matrix = len(group.shape) >= _MIN_DIMS and group.n_bytes >= _MIN_BYTES
        if not group.is_state or group.is_fixed or not is_matrix:
            continue
        dim = _megatron_dim(group)
        axes = tuple((model,) if dim == i else () for i in range(len(group.shape)))
        if dim is not None and divides(axes, group.shape, sizes):
            choices[index] = axes
    return tuple(choices)


def _megatron_dim(group: Group) -> int | None:
    words = [word.lower() for word in re.findall(r"[A-Za-z_]\w*", group.name)]
    while len(words) > 1 and words[-1] in _GENERIC and "embed" not in words[-1]:
        words.pop()
    last, rank = words[-1] if words else "", len(group.shape)
    if "embed" in group.name.lower() or "vocab" in last:
        return max(range(rank), key=lambda dim: group.shape[dim])
    if _COLUMN.search(last):
        return rank - 1
    if _ROW.search(last):
        return rank - 2
    rows, columns = group.shape[-2:]
    return None if rows == columns else rank - 1 if columns > rows else rank - 2
