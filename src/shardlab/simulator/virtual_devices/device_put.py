"""Puts values on virtual devices: one full array on the real device, labelled with its sharding.

These functions replace those of JAX that pass buffers to devices. JAX's own checks ran before, or
are called here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding, Sharding

from shardlab import _jax
from shardlab._jax import device_hooks
from shardlab._jax.host_hooks import plan_device_put
from shardlab.simulator.hosts.global_arrays import exchange_arguments, is_global
from shardlab.simulator.hosts.world import has_hosts
from shardlab.simulator.interpreter.program import split_global_array
from shardlab.simulator.virtual_devices.array_labels import (
    attach_partial_sums,
    attach_sharding,
    attach_type,
    attached_partial_sums,
    attached_sharding,
    default_sharding,
    is_unreduced,
    mark_local_only,
    unreduced_indices,
)
from shardlab.simulator.virtual_devices.devices import virtual_mesh


def device_put(*xs: Any, devices: Any, srcs: Any, copy_semantics: Any, dst_avals: Any) -> list[Any]:
    """Replaces JAX's implementation of `jax.device_put` for several values at once."""
    if has_hosts():
        return [
            _put_on_hosts(x, target, copy, aval)
            for x, target, copy, aval in zip(xs, devices, copy_semantics, dst_avals, strict=True)
        ]
    return [
        _put_value(x, target, copy)
        for x, target, copy in zip(xs, devices, copy_semantics, strict=True)
    ]


def batched_device_put(
    aval: Any,
    sharding: Any,
    xs: Sequence[Any],
    devices: Sequence[Any],
    committed: bool = True,
    enable_x64: bool | None = None,
) -> Any:
    """Replaces the function that puts one shard on each device; JAX has checked the shapes."""
    if is_unreduced(sharding):
        return _assemble_partial_sums(aval, sharding, dict(zip(devices, xs, strict=True)))
    indices = sharding.addressable_devices_indices_map(aval.shape)
    shards = [(indices[device], x) for x, device in zip(xs, devices, strict=True)]
    array = attach_sharding(_write_shards(aval, shards), sharding, committed=committed)
    return array if sharding.is_fully_addressable else mark_local_only(array)


def assemble_shards(shape: Any, sharding: Any, arrays: Any, *, dtype: Any = None) -> Any:
    """Replaces `jax.make_array_from_single_device_arrays`."""
    device_hooks.check_array_list(arrays)
    shape, arrays = tuple(shape), list(arrays)
    if arrays and _jax.is_extended(arrays[0].dtype):
        return _assemble_key_shards(shape, sharding, arrays)
    aval = device_hooks.check_shards(shape, sharding, arrays, dtype)
    devices = [device_hooks.single_device(array) for array in arrays]
    return batched_device_put(aval, sharding, arrays, devices)


def _assemble_key_shards(shape: Any, sharding: Any, arrays: list[Any]) -> Any:
    """Assemble random keys through the uint32 arrays behind them."""
    shards = [jax.random.key_data(key) for key in arrays]
    for data, key in zip(shards, arrays, strict=True):
        attach_sharding(data, attached_sharding(key))
    full_data = assemble_shards((*shape, *shards[0].shape[len(shape) :]), sharding, shards)
    with device_hooks.use_real_jax():
        keys = jax.random.wrap_key_data(full_data, impl=jax.random.key_impl(arrays[0]))
    return attach_sharding(keys, sharding)


def _assemble_partial_sums(aval: Any, sharding: Any, shards: dict[Any, Any]) -> Any:
    """Make an unreduced array from each device's shard of its partial sum."""
    indices = unreduced_indices(sharding, aval.shape)
    sizes = np.max([term_index for term_index, _ in indices.values()], axis=0) + 1
    terms = np.empty((*sizes, *aval.shape), aval.dtype)
    with device_hooks.use_real_jax():
        for device, (term_index, index) in indices.items():
            terms[(*term_index, *index)] = np.asarray(shards[device])
        stacked = jax.numpy.asarray(terms)
        total = stacked.sum(tuple(range(len(sizes))), dtype=aval.dtype)
    attach_partial_sums(total, stacked)
    return attach_sharding(total, sharding)


def _write_shards(aval: Any, shards: list[tuple[Any, Any]]) -> Any:
    """Write each distinct shard once; of several replicas the first device's is used."""
    # Zeros: the shards of other hosts are not among them.
    full_array = np.zeros(aval.shape, aval.dtype)
    written = set()
    with device_hooks.use_real_jax():
        for index, shard in shards:
            bounds = tuple((part.start, part.stop) for part in index)
            if bounds not in written:
                written.add(bounds)
                full_array[index] = np.asarray(shard)
        return jax.numpy.asarray(full_array)


def _put_value(x: Any, target: Any, copy: Any) -> Any:
    target = getattr(target, "sharding", target)  # a jax.experimental Format carries one
    semantics = device_hooks.dispatch.ArrayCopySemantics
    if isinstance(x, jax.Array):
        is_placed = target is None or (x.sharding == target and x.committed)
        if is_placed and copy == semantics.REUSE_INPUT:
            return x
        device_hooks.check_not_deleted(x)
    sharding = _target_sharding(x, target)
    kind = getattr(getattr(sharding, "spec", None), "unreduced_kind", None)  # from JAX 0.12
    if is_unreduced(sharding) and getattr(kind, "name", "sum") != "sum":
        raise NotImplementedError  # as JAX does
    source_type = _jax.aval_of(x)
    # A real copy: the label belongs to the array object, and `x` keeps its own.
    with device_hooks.use_real_jax():
        new = jax.numpy.array(x, copy=True)
    if is_unreduced(sharding):
        if not isinstance(x, jax.Array):
            sharding.addressable_devices_indices_map(np.shape(x))  # JAX raises
        elif _has_same_terms(x.sharding, sharding):
            attach_partial_sums(new, attached_partial_sums(x))
        else:
            with device_hooks.use_real_jax():
                terms = split_global_array(new, source_type, sharding)
            attach_partial_sums(new, terms)
    was_committed = isinstance(x, jax.Array) and x.committed
    attach_sharding(new, sharding, committed=target is not None or was_committed)
    if isinstance(target, device_hooks.Device) and _jax.has_sharding(source_type):
        # JAX changes the type for a sharding (`update_dp_aval`), not for a device: the array on one
        # device has the type of its old mesh, and operations on it are checked by that type.
        attach_type(new, source_type)
    if copy == semantics.DONATE_INPUT and isinstance(x, jax.Array) and _reuses_buffer(x, sharding):
        x.delete()
    return new


def _put_on_hosts(x: Any, target: Any, copy: Any, aval: Any) -> Any:
    """Put a value where devices of other hosts are involved; JAX itself decides what may go where.

    It compares the values of all hosts, reshards by a jit, or raises; what is left to do is to put
    this host's value on its devices, or to reshard to another order of the devices.
    """
    target = getattr(target, "sharding", target)
    sharding: Any = x.sharding if isinstance(x, jax.Array) else None
    if isinstance(target, NamedSharding) and isinstance(target.mesh, AbstractMesh):
        target = _target_sharding(x, target)
    is_target_global = isinstance(target, Sharding) and is_global(target)
    is_value_global = is_global(sharding)
    if not is_target_global and not is_value_global:
        return _put_value(x, target, copy)
    if is_value_global:
        device_hooks.check_not_deleted(x)
        if target is None or getattr(target, "device_set", None) == sharding.device_set:
            reuses = copy == device_hooks.dispatch.ArrayCopySemantics.REUSE_INPUT
            is_placed = target is None or target == sharding
            return x if is_placed and reuses else _moved(x, target or sharding)
    aval = _jax.aval_of(x) if aval is None else aval
    array = plan_device_put(x, aval, target, copy)
    if array is None:
        array = mark_local_only(attach_sharding(_copy_of(x), target))
    return array


def _moved(x: Any, target: Any) -> Any:
    """Reshard an array over several hosts, with all of them."""
    hosts = tuple(sorted({d.process_index for d in (*x.sharding.device_set, *target.device_set)}))
    operation = f"device_put({_jax.aval_of(x).str_short()}, {target.spec})"
    names = ["The array"]
    (complete,) = exchange_arguments(operation, repr(target), [x], [x.sharding], hosts, names)
    return attach_sharding(_copy_of(complete), target)


def _copy_of(x: Any) -> Any:
    with device_hooks.use_real_jax():
        return jax.numpy.array(x, copy=True)


def _has_same_terms(before: Any, after: Any) -> bool:
    """Return whether an array keeps its partial sums: the same axes, P() and P(None) alike."""
    if not is_unreduced(before) or before.spec.unreduced != after.spec.unreduced:
        return False
    return _sharded_dims(before.spec) == _sharded_dims(after.spec)


def _sharded_dims(spec: Any) -> dict[int, Any]:
    return {dim: entry for dim, entry in enumerate(spec.partitions) if entry is not None}


def _reuses_buffer(x: Any, sharding: Any) -> bool:
    """Return whether a donated array is deleted: JAX reshards it by a jit, which takes its buffers.

    That needs the same devices, shards of the same shape, and another sharding.
    """
    if not x.committed or x.sharding.device_set != sharding.device_set:
        return False
    has_same_shards = x.sharding.shard_shape(x.shape) == sharding.shard_shape(x.shape)
    return has_same_shards and not x.sharding.is_equivalent_to(sharding, x.ndim)


def _target_sharding(x: Any, target: Any) -> Any:
    if target is None:
        return x.sharding if isinstance(x, jax.Array) else default_sharding()
    if isinstance(target, device_hooks.Device):
        return device_hooks.SingleDeviceSharding(target)
    if isinstance(target, NamedSharding) and isinstance(target.mesh, AbstractMesh):
        return NamedSharding(_jax.context_mesh() or virtual_mesh(target.mesh), target.spec)
    return target
