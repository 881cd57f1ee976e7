"""StackedArray: the value that every device holds, as one array with device axes.

The interpreter runs one program for all devices at once. It represents a value that differs between
devices by stacking the shards into one ordinary array: for each mesh axis over which the value
really varies, the array has one extra dimension, its *device axis*. On a mesh data=2, model=4:

    replicated scalar loss                 f32[]             device_axes {}
    activations sharded over data          f32[2@data, 8, 16]      {"data": 0}
    weight sharded over model in dim 1     f32[16, 4@model, 32]    {"model": 1}

Two properties make this fast:

- A mesh axis over which the value is the same on all devices has no device axis. Replicas therefore
  cost neither memory nor arithmetic, however many devices there are.
- A device axis may stand anywhere among the local dimensions. Sharding dimension 1 of
  `f32[16, 128]` over `model=4` is the reshape to `f32[16, 4@model, 32]`: it moves no data, and
  gathering it again is the inverse reshape. Because the device axis stays where the sharded
  dimension was, a matmul of shards is the unsharded matmul (see `rules/dot_general.py`), and XLA
  receives the same large operations as for the unsharded program. Stacking devices in front, as
  `jax.vmap` would, needs a transpose at each boundary.

`dims` describes the array dimension by dimension: the name of a mesh axis for a device axis, or the
number of the local dimension, as in `(0, 'model', 1)` for the weight above.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax import lax

# One dimension of a stacked array: a mesh axis (a device axis), or the number of a local dimension.
Dim = str | int


@dataclasses.dataclass(frozen=True, slots=True)
class StackedArray:
    """An array, and the position of the device axis of each mesh axis over which it varies."""

    array: Any
    device_axes: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_dims(cls, array: Any, dims: Sequence[Dim]) -> StackedArray:
        """Return the stacked array whose dimensions are `dims`."""
        return cls(array, {dim: p for p, dim in enumerate(dims) if isinstance(dim, str)})

    @property
    def local_ndim(self) -> int:
        """Return the rank of the array that one device sees."""
        return int(self.array.ndim) - len(self.device_axes)

    @property
    def dims(self) -> tuple[Dim, ...]:
        """Return what each dimension of the array is, such as `('data', 0, 'model', 1)`."""
        axis_at = {position: name for name, position in self.device_axes.items()}
        # Local dims are numbered in the order in which they stand, whatever stands between them.
        local = iter(range(self.array.ndim))
        return tuple(axis_at[p] if p in axis_at else next(local) for p in range(self.array.ndim))

    @property
    def local_shape(self) -> tuple[int, ...]:
        positions = set(self.device_axes.values())
        return tuple(n for p, n in enumerate(self.array.shape) if p not in positions)

    @property
    def local_dims(self) -> tuple[int, ...]:
        return tuple(range(self.local_ndim))

    def position_of_local(self, local_dim: int) -> int:
        """Return the position in the array of local dimension `local_dim`."""
        return self.dims.index(local_dim)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshAxes:
    """The mesh axes in scope in mesh order, which of them are manual, and which devices are active.

    Inside a branch or loop on which devices diverge, `active` is True on the devices that really
    execute this code, and `diverged_at` is the source line of the branch. The other devices compute
    along (one program serves all of them) and their results are discarded.

    With `keeps_partial_sums` this is the program outside of shard_map, and its unreduced values
    have device axes (`unreduced.py`).
    """

    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    manual: frozenset[str] = frozenset()
    active: StackedArray | None = None
    diverged_at: str = ""
    keeps_partial_sums: bool = False

    def in_mesh_order(self, names: Iterable[str]) -> tuple[str, ...]:
        members = set(names)
        return tuple(name for name in self.sizes if name in members)

    def size(self, names: Iterable[str]) -> int:
        """Return the number of devices along `names` together."""
        return math.prod(self.sizes[name] for name in names)

    def drop_size_one(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return `names` without the mesh axes of size 1, in the order given.

        A mesh axis of size 1 never gets a device axis: nothing can vary over it.
        """
        return tuple(name for name in names if self.sizes[name] > 1)

    def with_axis(self, name: str, size: int) -> MeshAxes:
        """Return these axes and one more."""
        return dataclasses.replace(self, sizes={**self.sizes, name: size})

    def enter_shard_map(self, sizes: Mapping[str, int], manual: Iterable[str]) -> MeshAxes:
        """Return the axes in scope inside a shard_map that makes `manual` manual."""
        # The mesh of a nested shard_map may leave out axes that the outer one has made manual.
        outer = {name: size for name, size in self.sizes.items() if name not in sizes}
        return dataclasses.replace(
            self,
            sizes={**sizes, **outer},
            manual=self.manual | frozenset(manual),
            keeps_partial_sums=False,
        )


def full_shape(dims: Sequence[Dim], local_shape: Sequence[int], axes: MeshAxes) -> tuple[int, ...]:
    """Return the shape of a stacked array with these dims."""
    return tuple(axes.sizes[d] if isinstance(d, str) else local_shape[d] for d in dims)


def arrange_dims(value: StackedArray, dims: Sequence[Dim], shape: Sequence[int]) -> Any:
    """Return the array of `value` with its dimensions ordered as `dims`, broadcast to `shape`.

    Dims that `value` lacks (device axes over which it does not vary, or the local dimensions of a
    scalar) are added by broadcasting; the others are transposed into place if they must be.
    """
    current = value.dims
    # The common case: operands of one program are mostly sharded alike.
    if current == tuple(dims):
        return value.array
    target = [dims.index(dim) for dim in current]
    array = value.array
    if target != sorted(target):
        order = sorted(range(len(target)), key=target.__getitem__)
        array = lax.transpose(array, order)
        target.sort()
    if len(target) == len(dims):
        return array
    return lax.broadcast_in_dim(array, tuple(shape), tuple(target))


def broadcast_over(value: StackedArray, names: Iterable[str], axes: MeshAxes) -> StackedArray:
    """Return `value` with a device axis for each of `names`; new ones go in front."""
    new = [name for name in axes.in_mesh_order(names) if name not in value.device_axes]
    if not new:
        return value
    # In front: no transpose is needed, and XLA fuses the broadcast into whatever reads it.
    dims = (*new, *value.dims)
    shape = full_shape(dims, value.local_shape, axes)
    return StackedArray.from_dims(arrange_dims(value, dims, shape), dims)


def move_before_dim(
    value: StackedArray, names: Sequence[str], local_dim: int, axes: MeshAxes
) -> StackedArray:
    """Return `value` with the device axes `names` side by side just before `local_dim`.

    A `local_dim` equal to the local rank means the end of the array.
    """
    value = broadcast_over(value, names, axes)
    rest = [dim for dim in value.dims if dim not in names]
    split = rest.index(local_dim) if local_dim in rest else len(rest)
    dims = (*rest[:split], *names, *rest[split:])
    return StackedArray.from_dims(arrange_dims(value, dims, value.array.shape), dims)


def merge_to_front(
    value: StackedArray, names: Sequence[str], axes: MeshAxes
) -> tuple[Any, tuple[Dim, ...]]:
    """Return the array with `names` merged into one leading dimension, and the dims of the rest."""
    value = broadcast_over(value, names, axes)
    rest = tuple(dim for dim in value.dims if dim not in names)
    array = arrange_dims(value, (*names, *rest), value.array.shape)
    return array.reshape((axes.size(names), *array.shape[len(names) :])), rest


def split_from_front(
    array: Any, names: Sequence[str], rest: Sequence[Dim], axes: MeshAxes
) -> StackedArray:
    """Undo `merge_to_front`: split the leading dimension into the device axes `names`."""
    sizes = tuple(axes.sizes[name] for name in names)
    return StackedArray.from_dims(array.reshape((*sizes, *array.shape[1:])), (*names, *rest))
