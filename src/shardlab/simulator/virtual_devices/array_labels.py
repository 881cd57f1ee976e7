"""What an array of a simulated program says about itself: the sharding it would have.

The numbers live in one ordinary array on the one real device. Its sharding on the virtual mesh is
a label on that array; slices for `.addressable_shards` are cut when someone looks at one.
"""

from __future__ import annotations

from typing import Any

from shardlab._jax import device_hooks as seams
from shardlab.errors import NotMeasured
from shardlab.simulator.run_statistics import RUN_STATISTICS
from shardlab.simulator.virtual_devices.devices import CLIENT

_LABEL = "_shardlab_sharding"
_COMMITTED = "_shardlab_committed"


def attach(value: Any, sharding: Any, *, committed: bool = True) -> Any:
    """Label an array; `sharding` None means the first device, not committed."""
    target = getattr(value, "_base_array", value)
    if not isinstance(target, seams.ArrayImpl):
        return value  # the tangent of an integer is no array on a device
    if target is not value and sharding is not None:
        sharding = seams.physical_sharding(value.aval, sharding)  # of the numbers behind keys
    RUN_STATISTICS.add_sharding(sharding)
    target.__dict__[_LABEL] = sharding
    target.__dict__[_COMMITTED] = committed and sharding is not None
    return value


def label_of(value: Any) -> Any:
    """Return the sharding that an array was labelled with, or None."""
    target = getattr(value, "_base_array", value)
    return getattr(target, "__dict__", {}).get(_LABEL)


def sharding_of(value: Any) -> Any:
    """Return the sharding that an array has in simulated mode."""
    label = label_of(value)
    return default_sharding() if label is None else label


def is_committed(value: Any) -> bool:
    return bool(value.__dict__.get(_COMMITTED, False))


def default_sharding() -> Any:
    """Return where an array lives that nobody has placed."""
    return seams.SingleDeviceSharding(CLIENT.devices(1)[0])


class LazyShard(seams.Shard):  # type: ignore[misc]  # JAX is Any to mypy
    """A shard whose data is cut from the whole array when asked for."""

    def __init__(
        self, device: Any, sharding: Any, global_shape: Any, data: Any = None, whole: Any = None
    ) -> None:
        self._cut = data
        self._whole = whole
        super().__init__(device, sharding, global_shape, data)

    @property
    def _data(self) -> Any:
        """JAX reads this name too, for key arrays."""
        if self._cut is None:
            with seams.real():
                piece = self._whole[self.index]
            self._cut = attach(piece, seams.SingleDeviceSharding(self.device))
        return self._cut

    @_data.setter
    def _data(self, data: Any) -> None:
        self._cut = data

    @property
    def data(self) -> Any:
        return self._data


def shards_of(value: Any) -> list[Any]:
    """Return one shard for each device that holds a part of `value`."""
    seams.check_alive(value)
    sharding = sharding_of(value)
    if getattr(getattr(sharding, "spec", None), "unreduced", None):
        raise NotMeasured(
            "The shards of an unreduced array are partial sums, and only their total is kept.",
            where=f"addressable_shards of an array with sharding {sharding.spec}",
            fix="reshard it to a spec without `unreduced`, or look at the summands inside a "
            "shard_map with shardlab.peek.",
        )
    return [
        LazyShard(device, sharding, value.shape, whole=value)
        for device in sharding._device_assignment
    ]
