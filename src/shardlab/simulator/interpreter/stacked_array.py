"""A value on every device at once: one array with an extra axis for each mesh axis it varies over.

A mesh axis over which a value is the same everywhere has no device axis, so replicas cost nothing.
A device axis may stand anywhere among the local axes. That is what keeps simulation as fast as the
unsharded program: cutting `f32[8192]` over `model=4` is the reshape `f32[4@model, 2048]`, which
moves no data, and the products, sums and gathers that follow find their axes where they left them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax import lax

# What stands at one position of the array: the name of a mesh axis, or the number of a local axis.
Slot = str | int


@dataclasses.dataclass(frozen=True, slots=True)
class StackedArray:
    """An array and the position in it of each device axis."""

    array: Any
    device_axes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.device_axes)

    @property
    def n_local(self) -> int:
        """Return the rank of what one device sees."""
        return int(self.array.ndim) - len(self.device_axes)

    @property
    def slots(self) -> tuple[Slot, ...]:
        """Return what stands at each position, such as `('data', 0, 'model', 1)`."""
        name_at = {position: name for name, position in self.device_axes.items()}
        local = iter(range(self.array.ndim))
        return tuple(name_at[p] if p in name_at else next(local) for p in range(self.array.ndim))

    @property
    def local_shape(self) -> tuple[int, ...]:
        positions = set(self.device_axes.values())
        return tuple(n for p, n in enumerate(self.array.shape) if p not in positions)

    @property
    def local_slots(self) -> tuple[int, ...]:
        return tuple(range(self.n_local))

    def position_of_local(self, local_axis: int) -> int:
        """Return where local axis number `local_axis` stands in the array."""
        return self.slots.index(local_axis)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshAxes:
    """The mesh axes in scope, in mesh order, which of them are manual, and who is there.

    Where a branch or a loop has parted the devices, `active` is True on those that really run this
    code (the others compute along, and what they get is thrown away), and `diverged_at` names the
    line that parted them.
    """

    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    manual: frozenset[str] = frozenset()
    active: StackedArray | None = None
    diverged_at: str = ""

    def in_mesh_order(self, names: Iterable[str]) -> tuple[str, ...]:
        wanted = set(names)
        return tuple(name for name in self.sizes if name in wanted)

    def size(self, names: Iterable[str]) -> int:
        return math.prod(self.sizes[name] for name in names)

    def drop_size_one(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of `names` along which there is more than one device, in the order given.

        An axis of one device never gets a device axis: over it nothing can vary.
        """
        return tuple(name for name in names if self.sizes[name] > 1)

    def with_axis(self, name: str, size: int) -> MeshAxes:
        """Return these axes and one more."""
        return dataclasses.replace(self, sizes={**self.sizes, name: size})

    def enter(self, sizes: Mapping[str, int], manual: Iterable[str]) -> MeshAxes:
        """Return the axes seen inside a shard_map that makes `manual` manual."""
        outer = {name: size for name, size in self.sizes.items() if name not in sizes}
        return dataclasses.replace(
            self, sizes={**sizes, **outer}, manual=self.manual | frozenset(manual)
        )


def from_slots(array: Any, slots: Sequence[Slot]) -> StackedArray:
    """Return the Spread whose array has `slots` at its positions."""
    return StackedArray(array, {slot: p for p, slot in enumerate(slots) if isinstance(slot, str)})


def shape_of(slots: Sequence[Slot], local_shape: Sequence[int], axes: MeshAxes) -> tuple[int, ...]:
    return tuple(axes.sizes[s] if isinstance(s, str) else local_shape[s] for s in slots)


def arrange_dims(value: StackedArray, slots: Sequence[Slot], shape: Sequence[int]) -> Any:
    """Return the array of `value` with `slots` at its positions, broadcast to `shape`.

    Slots that `value` does not have (device axes over which it does not vary, or the local axes of
    a scalar) are filled by broadcasting; the others are transposed into place where they must be.
    """
    have = value.slots
    if have == tuple(slots):
        return value.array
    target = [slots.index(slot) for slot in have]
    array = value.array
    if target != sorted(target):
        order = sorted(range(len(target)), key=target.__getitem__)
        array = lax.transpose(array, order)
        target.sort()
    if len(target) == len(slots):
        return array
    return lax.broadcast_in_dim(array, tuple(shape), tuple(target))


def broadcast_over(value: StackedArray, names: Iterable[str], axes: MeshAxes) -> StackedArray:
    """Return `value` with a device axis for each of `names`, new ones in front."""
    new = [name for name in axes.in_mesh_order(names) if name not in value.device_axes]
    if not new:
        return value
    slots = (*new, *value.slots)
    shape = shape_of(slots, value.local_shape, axes)
    return from_slots(arrange_dims(value, slots, shape), slots)


def bring_before(
    value: StackedArray, names: Sequence[str], local_axis: int, axes: MeshAxes
) -> StackedArray:
    """Return `value` varying over `names`, which stand side by side just before `local_axis`.

    A `local_axis` equal to the local rank means the very end.
    """
    value = broadcast_over(value, names, axes)
    rest = [slot for slot in value.slots if slot not in names]
    cut = rest.index(local_axis) if local_axis in rest else len(rest)
    slots = (*rest[:cut], *names, *rest[cut:])
    return from_slots(arrange_dims(value, slots, value.array.shape), slots)


def in_front(
    value: StackedArray, names: Sequence[str], axes: MeshAxes
) -> tuple[Any, tuple[Slot, ...]]:
    """Return the array with `names` merged into one leading axis, and the slots of the rest."""
    value = broadcast_over(value, names, axes)
    rest = tuple(slot for slot in value.slots if slot not in names)
    array = arrange_dims(value, (*names, *rest), value.array.shape)
    return array.reshape((axes.size(names), *array.shape[len(names) :])), rest


def out_of_front(
    array: Any, names: Sequence[str], rest: Sequence[Slot], axes: MeshAxes
) -> StackedArray:
    """Undo `in_front`: split the leading axis into `names` again."""
    sizes = tuple(axes.sizes[name] for name in names)
    return from_slots(array.reshape((*sizes, *array.shape[1:])), (*names, *rest))
