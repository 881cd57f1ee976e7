"""The arrays of one tensor group on one device: parameter, gradient, optimizer states."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from shardlab.planner.memory.dtype_policy import DtypePolicy, is_float
from shardlab.planner.memory.fp8_scales import is_scale
from shardlab.planner.memory.optimizer import Optimizer, OptimizerState, optimizer_states
from shardlab.planner.plan import DeviceBytes, Kind, MemoryItem
from shardlab.planner.rules.matching import ShardedGroup
from shardlab.planner.tensor_group import TensorGroup
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.partition import shard_counts
from shardlab.sharding.spec import Spec


def device_arrays(
    sharded: ShardedGroup, mesh: Mesh, optimizer: Optimizer, policy: DtypePolicy
) -> Iterator[DeviceBytes]:
    """Yield the parameter; with an optimizer also its gradient and the optimizer's arrays.

    Tensors that are not trained have neither: batch statistics, PRNG keys, integers, fp8 scales.
    Optimizer states in the model's own tree are counted as they are.
    """
    # Without an optimizer argument the states of a checkpoint stay: they are stored too.
    group, n_tensors = sharded.group, sharded.group.n_tensors
    if group.is_optimizer_state:
        yield device_array(
            group.shape,
            group.dtype,
            sharded.spec,
            mesh,
            kind="optimizer",
            name="state",
            n_tensors=n_tensors,
        )
        return
    dtype = parameter_dtype(group, policy)
    yield device_array(
        group.shape,
        dtype,
        sharded.spec,
        mesh,
        kind="parameters",
        name="parameter",
        n_tensors=n_tensors,
    )
    if not optimizer.is_training or not is_trainable(group):
        return
    yield device_array(
        group.shape,
        policy.gradient(dtype),
        # ZeRO stage 2 shards gradients differently from their parameter.
        sharded.gradient_spec or sharded.spec,
        mesh,
        kind="gradients",
        name="gradient",
        n_tensors=n_tensors,
    )
    # ZeRO stages 1 and 2 shard the states; without ZeRO they follow the parameter, as optax.init
    # under jit with sharding propagation gives them.
    parameter_spec = sharded.state_spec or sharded.spec
    for state in optimizer_states(optimizer, group.shape, dtype, policy):
        yield device_array(
            state.shape,
            state.dtype,
            _state_spec(parameter_spec, state, len(group.shape)),
            mesh,
            kind="optimizer",
            name=state.name,
            n_tensors=n_tensors,
        )


def optimizer_counters(optimizer: Optimizer) -> tuple[MemoryItem, ...]:
    """Return what an optimizer stores once per model, on every device."""
    formula = "as in Optax: one per model, replicated on every device"
    return tuple(
        MemoryItem(kind="optimizer", name=name, bytes_per_device=n_bytes, formula=formula)
        for name, n_bytes in optimizer.counters
    )


def parameter_dtype(group: TensorGroup, policy: DtypePolicy) -> Dtype:
    """Return the dtype that a policy stores a group in; scales keep theirs, weights need it."""
    return group.dtype if is_scale(group) else policy.parameter(group.dtype)


def is_trainable(group: TensorGroup) -> bool:
    """Return whether an optimizer updates a group's tensors."""
    return group.is_trained and is_float(group.dtype) and not is_scale(group)


def device_array(
    shape: tuple[int, ...],
    dtype: Dtype,
    spec: Spec,
    mesh: Mesh,
    *,
    kind: Kind,
    name: str,
    n_tensors: int,
) -> DeviceBytes:
    """Return n arrays of one shape as one device stores them.

    A dimension that is not divisible counts as padded, as XLA would store it; `plan.indivisible`
    reports it.
    """
    shard = _make_shard(shape, spec, mesh)
    return DeviceBytes(
        kind=kind,
        name=name,
        shape=shape,
        dtype=dtype.short,
        spec=spec,
        shard_shape=shard.shape,
        n_replicas=shard.n_replicas,
        bytes_per_device=n_tensors * dtype.n_bytes(shard.n_elements),
        array_bytes=n_tensors * dtype.n_bytes(prod(shape)),
    )


def compute_copy_bytes(arrays: Iterable[DeviceBytes], dtype: Dtype) -> int:
    """Return the bytes of parameters in `dtype`, as far as they are stored in a wider one."""
    total = 0
    for array in arrays:
        stored = parse_dtype(array.dtype) if array.kind == "parameters" else dtype
        if stored.bits > dtype.bits and is_float(stored):
            total += array.bytes_per_device * dtype.bits // stored.bits
    return total


@dataclass(frozen=True)
class _Shard:
    shape: tuple[int, ...]
    n_replicas: int
    n_elements: int


# A search over thousands of meshes asks for the same shard again for each dtype and kind.
@lru_cache(maxsize=8192)
def _make_shard(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> _Shard:
    counts = shard_counts(spec, mesh)
    shard = tuple(-(-size // count) for size, count in zip(shape, counts, strict=False))
    # Dimensions beyond the end of the spec are unsharded.
    shard += shape[len(shard) :]
    return _Shard(shard, mesh.n_devices // prod(counts), prod(shard))


def _state_spec(parameter_spec: Spec, state: OptimizerState, rank: int) -> Spec:
    """Return the spec of a state: the parameter's entries for the dimensions that it shares."""
    dims = state.parameter_dims
    if len(dims) == rank and None not in dims:
        return parameter_spec
    entries = parameter_spec.entries
    return Spec(*(None if dim is None or dim >= len(entries) else entries[dim] for dim in dims))
