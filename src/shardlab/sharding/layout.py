"""The layout: which shard of one array each device of a mesh holds.

>>> kernel = layout((8, 6), "data,model", "data=2,model=3")
>>> kernel.shard_shape, kernel.n_shards, kernel.n_replicas, kernel.bytes_per_device
((4, 2), 6, 1, 32)
>>> kernel.index(5)
(slice(4, 8, None), slice(4, 6, None))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from shardlab.errors import InvalidType
from shardlab.sharding.dtype import Dtype, parse_dtype
from shardlab.sharding.mesh import Mesh, parse_mesh
from shardlab.sharding.partition import shard_counts, shard_shape
from shardlab.sharding.shape import parse_shape
from shardlab.sharding.spec import Spec, parse_spec

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

Index = tuple[slice, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """An array's shape and dtype, sharded by a spec on a mesh. Create it with `layout`.

    A shard is identified by its coordinates: one number for each dimension, below `shard_counts`.
    """

    shape: tuple[int, ...]
    spec: Spec
    mesh: Mesh
    dtype: Dtype
    shard_shape: tuple[int, ...]

    @property
    def n_devices(self) -> int:
        return self.mesh.n_devices

    @property
    def shard_counts(self) -> tuple[int, ...]:
        """The number of shards of each dimension."""
        counts = shard_counts(self.spec, self.mesh)
        return counts + (1,) * (len(self.shape) - len(counts))

    @property
    def n_shards(self) -> int:
        """The number of different shards."""
        # Not from `shape // shard_shape`: an empty dimension still has a number of shards.
        return prod(shard_counts(self.spec, self.mesh))

    @property
    def n_replicas(self) -> int:
        """The number of devices that hold the same shard."""
        return self.n_devices // self.n_shards

    @property
    def bytes_per_device(self) -> int:
        return self.dtype.n_bytes(prod(self.shard_shape))

    @property
    def array_bytes(self) -> int:
        """The bytes of the full array, without replicas."""
        return self.dtype.n_bytes(prod(self.shape))

    @property
    def total_bytes(self) -> int:
        """The bytes on all devices, with replicas."""
        return self.bytes_per_device * self.n_devices

    def shard_coordinates(self, device: int | Sequence[int]) -> tuple[int, ...]:
        """Return the coordinates of the shard that a device holds.

        >>> layout((8, 6), "(data,model),None", "data=2,model=2").shard_coordinates((1, 0))
        (2, 0)
        """
        steps = dict(zip(self.mesh.axis_names, self._device_coordinate(device), strict=True))
        coordinates = []
        for names in self.spec.axes:
            # Of several mesh axes on one dimension the first is the major one, as in JAX.
            shard = 0
            for name in names:
                shard = shard * self.mesh.shape[name] + steps[name]
            coordinates.append(shard)
        return (*coordinates, *(0,) * (len(self.shape) - len(coordinates)))

    def index(self, device: int | Sequence[int]) -> Index:
        """Return the slices of the array that a device, by id or coordinate, holds.

        >>> layout((8, 6), "data", "data=2,model=3").index((1, 0))
        (slice(4, 8, None), slice(0, 6, None))
        """
        return self.shard_index(self.shard_coordinates(device))

    def shard_index(self, coordinates: Sequence[int]) -> Index:
        """Return the slices of the array that one shard covers."""
        return tuple(
            slice(shard * size, (shard + 1) * size)
            for shard, size in zip(coordinates, self.shard_shape, strict=True)
        )

    def indices(self) -> dict[int, Index]:
        """Return the slices of every device id, in mesh order, as `devices_indices_map` does."""
        self.mesh.check_listable()
        return {device: self.index(device) for device in self.mesh.devices}

    def groups(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Return the device ids that hold each shard, by shard coordinates in array order.

        >>> layout((8, 6), "model", "data=2,model=2").groups()
        {(0, 0): (0, 2), (1, 0): (1, 3)}
        """
        # One entry per shard, and together all devices: as long as the list of devices.
        self.mesh.check_listable()
        all_coordinates = product(*map(range, self.shard_counts))
        return {shard: tuple(self.shard_devices(shard)) for shard in all_coordinates}

    def shard_devices(self, coordinates: Sequence[int]) -> Iterator[int]:
        """Yield the ids of the devices that hold one shard, in mesh order.

        >>> list(layout((8, 6), "model", "data=2,model=2").shard_devices((1, 0)))
        [1, 3]
        """
        sizes = self.mesh.shape
        # The inverse of `shard_coordinates`: minor mesh axes first, by remainders.
        steps: dict[str, int] = {}
        for shard, names in zip(coordinates, self.spec.axes, strict=False):
            for name in reversed(names):
                shard, steps[name] = divmod(shard, sizes[name])
        return self.mesh.devices_along(steps)

    def replicas_of(self, device: int | Sequence[int]) -> tuple[int, ...]:
        """Return the ids of all devices that hold the same shard, including this one.

        >>> layout((8, 6), "model", "data=2,model=2").replicas_of(3)
        (1, 3)
        """
        # First, so that an unknown device is reported even on a mesh too large to list.
        coordinates = self.shard_coordinates(device)
        self.mesh.check_listable()
        return tuple(self.shard_devices(coordinates))

    def to_json(self) -> dict[str, Any]:
        """Return plain data: the inputs and the figures derived from them.

        >>> data = layout((8, 6), "data", "data=2", "bf16").to_json()
        >>> data["shape"], data["spec"], data["shard_shape"], Layout.from_json(data).dtype.short
        ([8, 6], ['data'], [4, 6], 'bf16')
        """
        spec: list[Any] = [list(e) if isinstance(e, tuple) else e for e in self.spec.entries]
        return {
            "shape": list(self.shape),
            "dtype": self.dtype.name,
            "spec": spec,
            "mesh": self.mesh.to_json(),
            "shard_shape": list(self.shard_shape),
            "bytes_per_device": self.bytes_per_device,
            "array_bytes": self.array_bytes,
            "total_bytes": self.total_bytes,
            "n_devices": self.n_devices,
            "n_shards": self.n_shards,
            "n_replicas": self.n_replicas,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Layout:
        """Return the layout that `to_json` wrote; derived figures are recomputed."""
        mesh = Mesh.from_json(data["mesh"])
        return layout(data["shape"], data["spec"], mesh, data["dtype"])

    def text(self, width: int = 100) -> str:
        """Return the picture as plain text: the shards and the devices."""
        # Imported here: layouts without pictures must not load the renderers.
        from shardlab.sharding.layout_render import layout_text

        return layout_text(self, width)

    def svg(self) -> str:
        """Return the picture as an SVG element."""
        from shardlab.sharding.layout_render import layout_svg

        return layout_svg(self)

    def _repr_html_(self) -> str:
        from shardlab.sharding.layout_render import layout_html

        return layout_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.sharding.layout_render import layout_rich

        yield layout_rich(self, options.max_width)

    def _device_coordinate(self, device: int | Sequence[int]) -> tuple[int, ...]:
        if isinstance(device, Sequence):
            self.mesh.device_at(device)  # raises if the coordinate is outside the mesh
            return tuple(device)
        if hasattr(device, "__index__"):
            return self.mesh.coordinate(device)
        raise InvalidType(
            f"{device!r:.80} is not a device.",
            where=f"mesh {self.mesh}",
            fix="a device id, such as 0, or a coordinate with one number for each mesh axis.",
        )


def layout(shape: Any, spec: Any, mesh: Any, dtype: Any = "float32") -> Layout:
    """Return which shard each device holds of an array of this shape, spec, mesh and dtype.

    >>> kernel = layout((4096, 16384), "None,model", "data=2,model=4", "bf16")
    >>> kernel.shard_shape, kernel.bytes_per_device, kernel.n_replicas
    ((4096, 4096), 33554432, 2)
    >>> layout((8,), ("data",), {"data": 4}).index(3)
    (slice(6, 8, None),)

    `shape` can also be an array, or anything with a shape and a dtype. Mesh, spec and dtype are
    anything that `parse_mesh`, `parse_spec` and `parse_dtype` read: text, plain Python, or JAX
    objects. The result is the same as that of `jax.sharding.NamedSharding`.
    """
    # A jax.Array, a ShapeDtypeStruct or a NumPy array brings its own dtype.
    if hasattr(shape, "shape") and hasattr(shape, "dtype"):
        shape, dtype = shape.shape, shape.dtype
    sizes = parse_shape(shape)
    parsed_spec, parsed_mesh = parse_spec(spec), parse_mesh(mesh)
    local_shape = shard_shape(sizes, parsed_spec, parsed_mesh)
    return Layout(
        shape=sizes,
        spec=parsed_spec,
        mesh=parsed_mesh,
        dtype=parse_dtype(dtype),
        shard_shape=local_shape,
    )
