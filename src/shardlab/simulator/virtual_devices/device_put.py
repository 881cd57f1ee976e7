"""Puts numbers on virtual devices: one whole array on the real device, labelled with the sharding.

These stand in for JAX's functions that hand buffers to devices. Checks have happened before, in
JAX's own code, or are called here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, NamedSharding

from shardlab import _jax
from shardlab._jax import device_hooks as seams
from shardlab.simulator.virtual_devices import array_labels as labels
from shardlab.simulator.virtual_devices.devices import virtual_mesh


def device_put(*xs: Any, devices: Any, srcs: Any, copy_semantics: Any, dst_avals: Any) -> list[Any]:
    """Stand in for `jax.device_put` of several values at once."""
    return [
        _put(x, target, copy) for x, target, copy in zip(xs, devices, copy_semantics, strict=True)
    ]


def batched_device_put(
    aval: Any,
    sharding: Any,
    xs: Sequence[Any],
    devices: Sequence[Any],
    committed: bool = True,
    enable_x64: bool | None = None,
) -> Any:
    """Stand in for the call that spreads one value per device; JAX has checked the shapes."""
    indices = sharding.addressable_devices_indices_map(aval.shape)
    pieces = [(indices[device], x) for x, device in zip(xs, devices, strict=True)]
    return labels.attach(_assemble(aval, pieces), sharding, committed=committed)


def from_pieces(shape: Any, sharding: Any, arrays: Any, *, dtype: Any = None) -> Any:
    """Stand in for `jax.make_array_from_single_device_arrays`."""
    shape, arrays = tuple(shape), list(arrays)
    if arrays and _jax.is_extended(arrays[0].dtype):
        return _keys_from_pieces(shape, sharding, arrays)
    aval = seams.check_pieces(shape, sharding, arrays, dtype)
    return batched_device_put(aval, sharding, arrays, [seams.device_of(a) for a in arrays])


def _keys_from_pieces(shape: Any, sharding: Any, arrays: list[Any]) -> Any:
    data = [jax.random.key_data(key) for key in arrays]
    for each, key in zip(data, arrays, strict=True):
        labels.attach(each, labels.label_of(key))
    whole = from_pieces((*shape, *data[0].shape[len(shape) :]), sharding, data)
    with seams.real():
        keys = jax.random.wrap_key_data(whole, impl=jax.random.key_impl(arrays[0]))
    return labels.attach(keys, sharding)


def _assemble(aval: Any, pieces: list[tuple[Any, Any]]) -> Any:
    """Write each distinct slice once: the first device's copy is the one kept."""
    whole = np.empty(aval.shape, aval.dtype)
    seen = set()
    with seams.real():
        for index, piece in pieces:
            place = tuple((part.start, part.stop) for part in index)
            if place not in seen:
                seen.add(place)
                whole[index] = np.asarray(piece)
        return jax.numpy.asarray(whole)


def _put(x: Any, target: Any, copy: Any) -> Any:
    target = getattr(target, "sharding", target)  # a Format carries one
    semantics = seams.dispatch.ArrayCopySemantics
    if isinstance(x, jax.Array):
        is_there = target is None or (x.sharding == target and x.committed)
        if is_there and copy == semantics.REUSE_INPUT:
            return x
        seams.check_alive(x)
    sharding = _sharding(x, target)
    with seams.real():
        new = jax.numpy.array(x, copy=True)
    was_committed = isinstance(x, jax.Array) and x.committed
    return labels.attach(new, sharding, committed=target is not None or was_committed)


def _sharding(x: Any, target: Any) -> Any:
    if target is None:
        return x.sharding if isinstance(x, jax.Array) else labels.default_sharding()
    if isinstance(target, seams.Device):
        return seams.SingleDeviceSharding(target)
    if isinstance(target, NamedSharding) and isinstance(target.mesh, AbstractMesh):
        return NamedSharding(_jax.context_mesh() or virtual_mesh(target.mesh), target.spec)
    return target
