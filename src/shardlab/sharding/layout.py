"""The layout: what each device of a mesh holds of one array.

>>> one = layout((8, 6), "data,model", "data=2,model=3")
>>> one.shard_shape, one.n_shards, one.n_replicas, one.bytes_per_device
((4, 2), 6, 1, 32)
>>> one.index(5)
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
    """An array's shape and dtype, cut by a spec, on a mesh. Made by `layout`."""

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
        """The number of parts of each array axis."""
        cuts = shard_counts(self.spec, self.mesh)
        return cuts + (1,) * (len(self.shape) - len(cuts))

    @property
    def n_shards(self) -> int:
        """The number of different slices."""
        return prod(shard_counts(self.spec, self.mesh))

    @property
    def n_replicas(self) -> int:
        """The number of devices that hold each slice."""
        return self.n_devices // self.n_shards

    @property
    def bytes_per_device(self) -> int:
        return self.dtype.n_bytes(prod(self.shard_shape))

    @property
    def array_bytes(self) -> int:
        """The bytes of the array itself, counted once."""
        return self.dtype.n_bytes(prod(self.shape))

    @property
    def total_bytes(self) -> int:
        """The bytes on all devices together, replicas included."""
        return self.bytes_per_device * self.n_devices

    def part(self, device: int | Sequence[int]) -> tuple[int, ...]:
        """Return which part of each array axis a device holds.

        >>> layout((8, 6), "(data,model),None", "data=2,model=2").part((1, 0))
        (2, 0)
        """
        place = dict(zip(self.mesh.axis_names, self._coordinate(device), strict=True))
        parts = []
        for names in self.spec.axes:
            at = 0
            for name in names:
                at = at * self.mesh.shape[name] + place[name]
            parts.append(at)
        return (*parts, *(0,) * (len(self.shape) - len(parts)))

    def index(self, device: int | Sequence[int]) -> Index:
        """Return the slices of the array that a device, by id or coordinate, holds.

        >>> layout((8, 6), "data", "data=2,model=3").index((1, 0))
        (slice(4, 8, None), slice(0, 6, None))
        """
        return self.index_of_part(self.part(device))

    def index_of_part(self, part: Sequence[int]) -> Index:
        """Return the slices of one part."""
        return tuple(
            slice(at * size, (at + 1) * size)
            for at, size in zip(part, self.shard_shape, strict=True)
        )

    def indices(self) -> dict[int, Index]:
        """Return the slices of every device id, in mesh order, as `devices_indices_map` does."""
        self.mesh.check_listable()
        return {device: self.index(device) for device in self.mesh.devices}

    def groups(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Return the device ids that hold each part, parts in array order.

        >>> layout((8, 6), "model", "data=2,model=2").groups()
        {(0, 0): (0, 2), (1, 0): (1, 3)}
        """
        self.mesh.check_listable()
        return {part: tuple(self.holders(part)) for part in product(*map(range, self.shard_counts))}

    def holders(self, part: Sequence[int]) -> Iterator[int]:
        """Yield the ids of the devices that hold one part, in mesh order.

        >>> list(layout((8, 6), "model", "data=2,model=2").holders((1, 0)))
        [1, 3]
        """
        sizes = self.mesh.shape
        fixed: dict[str, int] = {}
        for at, names in zip(part, self.spec.axes, strict=False):
            for name in reversed(names):
                at, fixed[name] = divmod(at, sizes[name])
        return self.mesh.devices_along(fixed)

    def replicas_of(self, device: int | Sequence[int]) -> tuple[int, ...]:
        """Return the ids of all devices that hold the same slice, this one included.

        >>> layout((8, 6), "model", "data=2,model=2").replicas_of(3)
        (1, 3)
        """
        part = self.part(device)
        self.mesh.check_listable()
        return tuple(self.holders(part))

    def to_json(self) -> dict[str, Any]:
        """Return plain data: what was asked, and the figures that follow from it.

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
        """Return the layout that `to_json` wrote; its figures are worked out anew."""
        mesh = Mesh.from_json(data["mesh"])
        return layout(data["shape"], data["spec"], mesh, data["dtype"])

    def text(self, width: int = 100) -> str:
        """Return the picture as plain text: the array by owner, the mesh by what it holds."""
        from shardlab.sharding.layout_picture import layout_text

        return layout_text(self, width)

    def svg(self) -> str:
        """Return the picture as an SVG element."""
        from shardlab.sharding.layout_picture import layout_svg

        return layout_svg(self)

    def _repr_html_(self) -> str:
        from shardlab.sharding.layout_picture import layout_html

        return layout_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.sharding.layout_picture import layout_rich

        yield layout_rich(self, options.max_width)

    def _coordinate(self, device: int | Sequence[int]) -> tuple[int, ...]:
        if isinstance(device, Sequence):
            self.mesh.device_at(device)  # refuses a place outside the mesh
            return tuple(device)
        if hasattr(device, "__index__"):
            return self.mesh.coordinate(device)
        raise InvalidType(
            f"{device!r:.80} is not a device.",
            where=f"mesh {self.mesh}",
            fix="a device id, such as 0, or a coordinate with one number for each mesh axis.",
        )


def layout(shape: Any, spec: Any, mesh: Any, dtype: Any = "float32") -> Layout:
    """Return what each device holds of an array of that shape, cut by that spec on that mesh.

    >>> one = layout((4096, 16384), "None,model", "data=2,model=4", "bf16")
    >>> one.shard_shape, one.bytes_per_device, one.n_replicas
    ((4096, 4096), 33554432, 2)
    >>> layout((8,), ("data",), {"data": 4}).index(3)
    (slice(6, 8, None),)

    Instead of a shape you may give an array, or anything with a shape and a dtype. Mesh, spec and
    dtype are whatever `parse_mesh`, `parse_spec` and `parse_dtype` read: text, plain Python, or
    JAX's own objects. The answer is the one `jax.sharding.NamedSharding` gives.
    """
    if hasattr(shape, "shape") and hasattr(shape, "dtype"):
        shape, dtype = shape.shape, shape.dtype
    sizes = parse_shape(shape)
    parsed_spec, parsed_mesh = parse_spec(spec), parse_mesh(mesh)
    piece = shard_shape(sizes, parsed_spec, parsed_mesh)
    return Layout(
        shape=sizes, spec=parsed_spec, mesh=parsed_mesh, dtype=parse_dtype(dtype), shard_shape=piece
    )
