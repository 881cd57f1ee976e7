"""What a device holds of one array and of all that training keeps beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from shardlab.planner.memory.dtype_policy import DtypePolicy, is_float
from shardlab.planner.memory.fp8_scales import is_scale
from shardlab.planner.memory.optimizer import State, parse_optimizer, states_of
from shardlab.planner.plan import DeviceBytes, Kind, MemoryItem
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import Dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts
from shardlab.sharding.spec import Spec


def held_by(
    placed: ShardedGroup, mesh: Mesh, optimizer: str, policy: DtypePolicy
) -> Iterator[DeviceBytes]:
    """Yield the parameter; with an optimizer also its gradient and the optimizer's arrays.

    What is not trained has neither: statistics, keys, whole numbers, scales of fp8 blocks. What an
    optimizer keeps in the model's own tree is held as it is.
    """
    group, n = placed.group, placed.group.n_tensors
    if group.is_optimizer_state:
        yield hold("optimizer", "state", group.shape, group.dtype, placed.spec, mesh, n)
        return
    dtype = dtype_of(group, policy)
    yield hold("parameters", "parameter", group.shape, dtype, placed.spec, mesh, n)
    if optimizer == "none" or not is_trained(group):
        return
    spec = placed.gradient_spec or placed.spec
    yield hold("gradients", "gradient", group.shape, policy.gradient(dtype), spec, mesh, n)
    spec = placed.state_spec or placed.spec
    rank = len(group.shape)
    for state in states_of(optimizer, group.shape, dtype, policy):
        yield hold(
            "optimizer", state.name, state.shape, state.dtype, _kept(spec, state, rank), mesh, n
        )


def counters_of(optimizer: str) -> tuple[MemoryItem, ...]:
    """Return what an optimizer keeps once for the whole model, on every device."""
    formula = "as Optax keeps it: once for the model, whole on every device"
    counters = parse_optimizer(optimizer).counters
    return tuple(
        MemoryItem(kind="optimizer", name=name, bytes_per_device=n_bytes, formula=formula)
        for name, n_bytes in counters
    )


def dtype_of(group: TensorGroup, policy: DtypePolicy) -> Dtype:
    """Return what a family's tensors are held in; narrower scales would not serve their weights."""
    return group.dtype if is_scale(group) else policy.parameter(group.dtype)


def is_trained(group: TensorGroup) -> bool:
    """Tell whether an optimizer changes a family's tensors."""
    return group.is_trained and is_float(group.dtype) and not is_scale(group)


def hold(
    kind: Kind, name: str, shape: tuple[int, ...], dtype: Dtype, spec: Spec, mesh: Mesh, n: int
) -> DeviceBytes:
    """Return n arrays of one shape as a device holds them.

    An array axis that does not divide counts as padded, as XLA would: a finding says so.
    """
    piece = _piece(shape, spec, mesh)
    return DeviceBytes(
        kind=kind,
        name=name,
        shape=shape,
        dtype=dtype.short,
        spec=spec,
        shard_shape=piece.shape,
        n_copies=piece.n_copies,
        bytes_per_device=n * dtype.n_bytes(piece.n_elements),
        array_bytes=n * dtype.n_bytes(prod(shape)),
    )


@dataclass(frozen=True)
class _Piece:
    shape: tuple[int, ...]
    n_copies: int
    n_elements: int


@lru_cache(maxsize=8192)
def _piece(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> _Piece:
    cuts = shard_counts(spec, mesh)
    shard = tuple(-(-size // parts) for size, parts in zip(shape, cuts, strict=False))
    shard += shape[len(shard) :]
    return _Piece(shard, mesh.n_devices // prod(cuts), prod(shard))


def _kept(spec: Spec, state: State, rank: int) -> Spec:
    """Return the spec of a state: what the parameter's says of the axes that it keeps."""
    if len(state.kept) == rank and None not in state.kept:
        return spec
    entries = spec.entries
    kept = (None if at is None or at >= len(entries) else entries[at] for at in state.kept)
    return Spec(*kept)
