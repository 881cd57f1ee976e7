"""The sharding that an array of a simulated program would have, attached to it as a label.

The values are one ordinary array on the one real device. Its sharding on the virtual mesh is an
attribute of that array object; the data of `.addressable_shards` is sliced only when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardlab._jax import device_hooks
from shardlab.simulator.run_statistics import RUN_STATISTICS
from shardlab.simulator.virtual_devices.devices import CLIENT

_LABEL = "_shardlab_sharding"
_COMMITTED = "_shardlab_committed"
_AVAL = "_shardlab_aval"
# Set on an array over several hosts of which this host knows only its own shards.
_LOCAL_ONLY = "_shardlab_local_only"
# The terms of an unreduced array, one along each unreduced mesh axis, stacked in front of it in
# alphabetical order of the axes. The array itself has their total.
_PARTIAL_SUMS = "_shardlab_partial_sums"


def attach_sharding(value: Any, sharding: Any, *, committed: bool = True) -> Any:
    """Label an array; `sharding` None means on the first device and not committed."""
    target = getattr(value, "_base_array", value)
    if not isinstance(target, device_hooks.ArrayImpl):
        return value  # such as the float0 tangent of an integer, a NumPy array
    if target is not value and sharding is not None:
        # A key array: the label belongs to the uint32 array behind it, which has more dimensions.
        sharding = device_hooks.physical_sharding(value.aval, sharding)
    RUN_STATISTICS.add_sharding(sharding)
    # ArrayImpl is a C++ class with a __dict__, so Python attributes live as long as the array.
    target.__dict__[_LABEL] = sharding
    target.__dict__.pop(_AVAL, None)
    target.__dict__[_COMMITTED] = committed and sharding is not None
    return value


def attach_type(value: Any, aval: Any) -> None:
    """Give an array a type whose sharding is not that of its label."""
    if isinstance(value, device_hooks.ArrayImpl):
        with device_hooks.use_real_jax():
            plain = value.aval
        value.__dict__[_AVAL] = plain, aval


def attached_sharding(value: Any) -> Any:
    """Return the sharding that an array was labelled with, or None."""
    target = getattr(value, "_base_array", value)
    return getattr(target, "__dict__", {}).get(_LABEL)


def attach_partial_sums(value: Any, terms: Any) -> None:
    """Attach to an unreduced array what each device holds of it; None attaches nothing."""
    if terms is not None:
        value.__dict__[_PARTIAL_SUMS] = terms


def attached_partial_sums(value: Any) -> Any:
    return getattr(value, "__dict__", {}).get(_PARTIAL_SUMS)


def mark_local_only(value: Any) -> Any:
    """Mark an array over several hosts: only the shards of this host have values."""
    getattr(value, "_base_array", value).__dict__[_LOCAL_ONLY] = True
    return value


def is_local_only(value: Any) -> bool:
    return bool(getattr(value, "__dict__", {}).get(_LOCAL_ONLY))


def sharding_of(value: Any) -> Any:
    """Return the sharding that an array has in simulated mode."""
    sharding = attached_sharding(value)
    return default_sharding() if sharding is None else sharding


def aval_with_sharding(value: Any, read_aval: Callable[[Any], Any]) -> Any:
    """Return the type of an array; `x.aval.sharding` says how the array is sharded."""
    plain = read_aval(value)
    before, aval = value.__dict__.get(_AVAL, (None, None))
    if before is not plain:
        # Stored, because JAX reads it in every eager operation.
        aval = device_hooks.aval_with_sharding(plain, value.__dict__.get(_LABEL))
        value.__dict__[_AVAL] = plain, aval
    return aval


def is_committed(value: Any) -> bool:
    return bool(value.__dict__.get(_COMMITTED, False))


def is_unreduced(sharding: Any) -> bool:
    return bool(getattr(getattr(sharding, "spec", None), "unreduced", None))


def default_sharding() -> Any:
    """Return the sharding of an array that was never placed: on the first device of this host."""
    return device_hooks.SingleDeviceSharding(CLIENT.default_device())


class LazyShard(device_hooks.Shard):  # type: ignore[misc]  # JAX is Any to mypy
    """A shard whose data is sliced from the full array when it is read."""

    def __init__(
        self,
        device: Any,
        sharding: Any,
        global_shape: Any,
        data: Any = None,
        full_array: Any = None,
    ) -> None:
        self._slice = data
        self._full_array = full_array
        super().__init__(device, sharding, global_shape, data)

    # JAX's Shard stores `_data` and reads it directly for key arrays, so it must be a property too.
    @property
    def _data(self) -> Any:
        if self._slice is None:
            with device_hooks.evaluate_now():
                local = _slice_array(self._full_array, self.index)
            self._slice = attach_sharding(
                local,
                device_hooks.SingleDeviceSharding(self.device),
                committed=is_committed(getattr(self._full_array, "_base_array", self._full_array)),
            )
        return self._slice

    @_data.setter
    def _data(self, data: Any) -> None:
        self._slice = data

    @property
    def data(self) -> Any:
        return self._data


def _slice_array(value: Any, index: Any) -> Any:
    """Return `value[index]` as an array object of its own.

    For a scalar, or an index that selects everything, JAX returns `value` itself, and the label of
    the shard would replace that of the full array.
    """
    shard = value[index]
    return device_hooks.alias_array(value) if shard is value else shard


def lazy_shards(value: Any) -> list[Any]:
    """Return one shard for each device that holds a shard of `value`."""
    device_hooks.check_not_deleted(value)
    sharding = sharding_of(value)
    if is_unreduced(sharding):
        return _unreduced_shards(value, sharding)
    return [
        LazyShard(device, sharding, value.shape, full_array=value)
        for device in sharding._addressable_device_assignment
    ]


def global_shards(value: Any) -> list[Any]:
    """Return a shard for each device; those of other hosts have no data, as in JAX."""
    local = {shard.device: shard for shard in lazy_shards(value)}
    sharding = sharding_of(value)
    return [
        local.get(device) or device_hooks.Shard(device, sharding, value.shape, None)
        for device in sharding._device_assignment
    ]


def check_fetchable(value: Any) -> None:
    """Raise as JAX does for an array of which this host does not have all values."""
    sharding = sharding_of(value)
    if sharding.is_fully_addressable or sharding.is_fully_replicated:
        if sharding.has_addressable_devices:
            return
    elif device_hooks.has_full_value(sharding, value.shape):
        return
    # JAX's own sentence: programs match it.
    raise RuntimeError(
        "Fetching value for `jax.Array` that spans non-addressable (non process local) devices is "
        "not possible. You can use `jax.experimental.multihost_utils.process_allgather` to print "
        "the global array or use `.addressable_shards` method of jax.Array to inspect the "
        "addressable (process local) shards."
    )


def addressable_data(value: Any, index: int) -> Any:
    """Return one device's data; of a replicated array the first device's, as JAX does."""
    return lazy_shards(value)[0 if value.is_fully_replicated else index].data


def unreduced_indices(sharding: Any, shape: Any) -> dict[Any, tuple[Any, Any]]:
    """Return for each device the index of its partial sum, and of its shard within that."""
    mesh, spec = sharding.mesh, sharding.spec
    names = sorted(name for name in spec.unreduced if mesh.shape[name] > 1)
    # Without `unreduced`: JAX has no index for the shards of an unreduced array.
    indices = NamedSharding(mesh, PartitionSpec(*spec.partitions)).devices_indices_map(shape)
    result = {}
    for coordinates, device in np.ndenumerate(mesh.devices):
        position = dict(zip(mesh.axis_names, coordinates, strict=True))
        result[device] = tuple(position[name] for name in names), indices[device]
    return result


def _unreduced_shards(value: Any, sharding: Any) -> list[Any]:
    """Return each device's shard of its own partial sum."""
    terms = attached_partial_sums(value)
    shards = []
    for device, (term_index, index) in unreduced_indices(sharding, value.shape).items():
        with device_hooks.evaluate_now():
            if terms is not None:
                data = terms[(*term_index, *index)]
            elif any(term_index):
                data = jax.numpy.zeros_like(_slice_array(value, index))
            else:  # the total is on the first device, as when JAX reshards to `unreduced`
                data = _slice_array(value, index)
        attach_sharding(data, device_hooks.SingleDeviceSharding(device))
        shards.append(LazyShard(device, sharding, value.shape, data=data))
    return shards
