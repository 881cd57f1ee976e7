"""What an array of a simulated program says about itself: the sharding it would have.

The numbers live in one ordinary array on the one real device. Its sharding on the virtual mesh is
a label on that array; slices for `.addressable_shards` are cut when someone looks at one.
"""

from __future__ import annotations

from typing import Any

from shardlab.engine._jax import seams
from shardlab.engine.virtual import CLIENT

_LABEL = "_shardlab_sharding"
_COMMITTED = "_shardlab_committed"


def attach(value: Any, sharding: Any, *, committed: bool = True) -> Any:
    """Label an array; `sharding` None means the first device, not committed."""
    target = getattr(value, "_base_array", value)
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
    return first_device() if label is None else label


def is_committed(value: Any) -> bool:
    return bool(value.__dict__.get(_COMMITTED, False))


def first_device() -> Any:
    return seams.SingleDeviceSharding(CLIENT.devices(1)[0])


class LazyShard(seams.Shard):  # type: ignore[misc, name-defined]
    """A shard whose data is cut from the whole array when asked for."""

    def __init__(self, device: Any, sharding: Any, whole: Any) -> None:
        super().__init__(device, sharding, whole.shape, None)
        self._whole = whole

    @property
    def data(self) -> Any:
        if self._data is None:
            with seams.real():
                piece = self._whole[self.index]
            self._data = attach(piece, seams.SingleDeviceSharding(self.device))
        return self._data


def shards_of(value: Any) -> list[Any]:
    """Return one shard for each device that holds a part of `value`."""
    sharding = sharding_of(value)
    return [LazyShard(device, sharding, value) for device in sharding._device_assignment]
