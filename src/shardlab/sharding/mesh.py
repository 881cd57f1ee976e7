"""The mesh: named axes with sizes, and the order of its devices.

>>> mesh = parse_mesh("data=2,model=4")
>>> mesh.n_devices, mesh.coordinate(6), mesh.device_at((1, 2))
(8, (1, 2), 6)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from operator import index
from typing import Any

from shardlab._text.scanner import Scanner
from shardlab.errors import (
    DuplicateMeshAxis,
    InvalidSize,
    InvalidType,
    TooManyDevices,
    UnknownDevice,
    short_repr,
)
from shardlab.sharding.shape import parse_size

# XLA counts devices in 32 bits: JAX raises `RuntimeError: std::bad_cast` beyond.
MAX_DEVICES = 2**31 - 1
_MAX_AXES_IN_ERROR = 20
_MAX_COUNT_IN_ERROR = 10**100  # products of sizes are unbounded, and Python prints them slowly
# Listing more devices than this takes seconds and looks like a hang.
MAX_LISTED = 2**20
_DEVICE_EXAMPLE = "write an id, such as 5, or a coordinate, such as 1,2."
_EXAMPLE = "write name=size pairs, such as data=2,model=4."


@dataclass(frozen=True, init=False, repr=False)
class Mesh:
    """Named mesh axes in order, and the devices along them.

    >>> Mesh(data=2, model=4)
    Mesh(data=2, model=4)
    >>> Mesh({"data": 2}, device_ids=(5, 3)).device_at((1,))
    3

    Devices are numbered 0, 1, ... with the last mesh axis fastest, as in JAX, unless `device_ids`
    gives another order. `axis_types` are JAX's names (Auto, Explicit, Manual); the default is Auto.
    """

    axis_names: tuple[str, ...]
    axis_sizes: tuple[int, ...]
    axis_types: tuple[str, ...]
    device_ids: tuple[int, ...] | None

    def __init__(
        self,
        axes: Mapping[str, int] | Iterable[tuple[str, int]] = (),
        /,
        *,
        device_ids: Iterable[int] | None = None,
        axis_types: Iterable[str] = (),
        **sizes: int,
    ) -> None:
        pairs = [*(axes.items() if isinstance(axes, Mapping) else axes), *sizes.items()]
        names, numbers = _check_axes(pairs)
        # The dataclass is frozen, so that meshes can be keys of caches; only `__init__` may write.
        put = object.__setattr__
        put(self, "axis_names", names)
        put(self, "axis_sizes", numbers)
        put(self, "axis_types", tuple(axis_types) or ("Auto",) * len(names))
        put(self, "device_ids", _check_device_ids(device_ids, numbers))

    # cached_property writes to `__dict__`, which a frozen dataclass does not prevent.
    @cached_property
    def shape(self) -> dict[str, int]:
        """Axis names and sizes, in order."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @cached_property
    def n_devices(self) -> int:
        return prod(self.axis_sizes)

    @property
    def devices(self) -> tuple[int, ...]:
        """All device ids, in mesh order."""
        if self.device_ids is not None:
            return self.device_ids
        self.check_listable()
        return tuple(range(self.n_devices))

    def coordinate(self, device: int) -> tuple[int, ...]:
        """Return the coordinate of a device id: one number for each mesh axis."""
        position = self._device_position(device)
        steps = []
        for size in reversed(self.axis_sizes):
            position, step = divmod(position, size)
            steps.append(step)
        return tuple(reversed(steps))

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Return all coordinates, in mesh order."""
        self.check_listable()
        return product(*map(range, self.axis_sizes))

    def device_at(self, coordinate: Iterable[int]) -> int:
        """Return the device id at a coordinate."""
        steps = tuple(coordinate)
        try:
            position = 0
            for step, size in zip(map(index, steps), self.axis_sizes, strict=True):
                if not 0 <= step < size:
                    raise ValueError
                position = position * size + step
        except (TypeError, ValueError):  # not integers, wrong number of them, or out of range
            raise self._unknown_device_error(f"device coordinate {steps}") from None
        return position if self.device_ids is None else self.device_ids[position]

    def devices_along(self, fixed: Mapping[str, int]) -> Iterator[int]:
        """Yield the devices whose coordinates along some mesh axes are fixed, in mesh order.

        >>> list(Mesh(data=2, model=3).devices_along({"model": 1}))
        [1, 4]
        """
        # Ranges of offsets instead of a list of devices: a mesh can have 2**31 of them.
        offsets: list[range] = []
        stride = 1
        for name, size in reversed(self.shape.items()):
            start = fixed.get(name, 0) * stride
            stop = start + 1 if name in fixed else size * stride
            offsets.insert(0, range(start, stop, stride))
            stride *= size
        ids = self.device_ids
        positions = _range_sums(offsets)
        return positions if ids is None else (ids[position] for position in positions)

    def check_listable(self) -> None:
        """Raise `TooManyDevices` if listing all devices would take so long that it looks hung."""
        if self.n_devices > MAX_LISTED:
            raise TooManyDevices(
                f"The mesh has {self.n_devices:,} devices, too many to list one by one.",
                where=f"mesh {self}",
                fix=f"query one device, or use a mesh of at most {MAX_LISTED:,} devices.",
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain data: the axes; device order and axis types only if not the default."""
        # Defaults are omitted, so that most saved layouts have one readable line per mesh.
        data: dict[str, Any] = {"axes": self.shape.copy()}
        if self.device_ids is not None:
            data["device_ids"] = list(self.device_ids)
        if set(self.axis_types) - {"Auto"}:
            data["axis_types"] = list(self.axis_types)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Mesh:
        """Return the mesh that `to_json` wrote."""
        return cls(
            data["axes"], device_ids=data.get("device_ids"), axis_types=data.get("axis_types", ())
        )

    def __str__(self) -> str:
        """Return the axes as text that `parse_mesh` reads: `data=2,model=4`."""
        return mesh_text(self.shape.items())

    def __repr__(self) -> str:
        parts = [f"{name}={size}" for name, size in self.shape.items()]
        if self.device_ids is not None:
            parts.append(f"device_ids=({_ids_text(self.device_ids)})")
        return f"Mesh({', '.join(parts)})"

    @cached_property
    def _positions_by_id(self) -> dict[int, int]:
        return {device: position for position, device in enumerate(self.device_ids or ())}

    def _device_position(self, device: int) -> int:
        if self.device_ids is None and 0 <= device < self.n_devices:
            return device
        if self.device_ids is not None and device in self._positions_by_id:
            return self._positions_by_id[device]
        raise self._unknown_device_error(f"device {device}")

    def _unknown_device_error(self, device: str) -> UnknownDevice:
        ids = self.device_ids
        id_range = f"0 to {self.n_devices - 1}" if ids is None else _ids_text(sorted(ids))
        steps = ", ".join(f"{name} 0 to {size - 1}" for name, size in self.shape.items())
        return UnknownDevice(
            f"Unknown {device}.",
            where=f"mesh {self}",
            fix=f"a device id ({id_range}) or a coordinate ({steps}).",
        )


def parse_mesh(mesh: Any) -> Mesh:
    """Return a mesh from text, a mapping, pairs, or a JAX Mesh or AbstractMesh.

    >>> parse_mesh("data=2, model=4") == parse_mesh({"data": 2, "model": 4})
    True
    >>> parse_mesh([("data", 2), ("model", 4)])
    Mesh(data=2, model=4)

    The order of devices and the axis types of a `jax.sharding.Mesh` are preserved.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return _parse_mesh_text(mesh)
    if isinstance(mesh, Mapping):
        return Mesh(mesh)
    # By attributes: importing JAX to test for its classes would take a second.
    if hasattr(mesh, "axis_names") and hasattr(mesh, "axis_types"):
        return _convert_jax_mesh(mesh)
    if isinstance(mesh, Iterable):
        return Mesh(_axis_pairs(mesh))
    raise _not_a_mesh_error(mesh)


def parse_device(source: str) -> int | tuple[int, ...]:
    """Return the device id or the coordinate in a text.

    >>> parse_device("5"), parse_device("1,2"), parse_device("(1, 2)"), parse_device("1,")
    (5, (1, 2), (1, 2), (1,))
    """
    text = Scanner(source, kind="device")
    closing = ")" if text.take("(") else ""
    numbers: list[int] = []
    # "5" is an id; "(5)", "5," and "1,2" are coordinates, as in Python's tuples.
    is_coordinate = bool(closing)
    while not numbers or not (text.at_end or (closing and text.next_is(closing))):
        if (number := text.take_int()) is None:
            raise text.error("A number was expected here.", fix=_DEVICE_EXAMPLE)
        numbers.append(number)
        if text.take(","):
            is_coordinate = True
        elif not text.at_end and not (closing and text.next_is(closing)):
            raise text.error("',' was expected here.", fix=_DEVICE_EXAMPLE)
    if (closing and not text.take(closing)) or not text.at_end:
        raise text.error(f"{closing or 'The end'!r} was expected here.", fix=_DEVICE_EXAMPLE)
    return tuple(numbers) if is_coordinate else numbers[0]


@lru_cache(maxsize=1024)
def _parse_mesh_text(source: str) -> Mesh:
    # `()` is what `str` prints for a mesh without axes.
    text = Scanner(source, kind="mesh")
    if text.take("(") and text.take(")") and text.at_end:
        return Mesh()
    text = Scanner(source, kind="mesh")
    pairs: list[tuple[str, int]] = []
    names: set[str] = set()
    while not text.at_end or not pairs:
        if (name := text.take_name()) is None:
            raise text.error("A mesh axis name was expected here.", fix=_EXAMPLE)
        if name in names:
            message = f"Mesh axis {short_repr(name)} appears twice."
            raise text.error(message, fix=_EXAMPLE, back=True)
        names.add(name)
        if not (text.take("=") or text.take(":")):
            raise text.error(f"'=' was expected after {short_repr(name)}.", fix=_EXAMPLE)
        if (size := text.take_int()) is None:
            message = f"The size of mesh axis {short_repr(name)} was expected here."
            raise text.error(message, fix=_EXAMPLE)
        if not 1 <= size <= MAX_DEVICES:
            raise _axis_size_error(name, size, source)
        pairs.append((name, size))
        if not text.take(",") and not text.at_end:
            raise text.error("',' was expected here.", fix=_EXAMPLE)
    return Mesh(pairs)


def _convert_jax_mesh(mesh: Any) -> Mesh:
    """Convert a jax.sharding.Mesh or AbstractMesh by its attributes, without importing JAX."""
    # `axis_types` can be None; its members are of the enum jax.sharding.AxisType.
    types = [getattr(kind, "name", str(kind)) for kind in mesh.axis_types or ()]
    try:
        devices = mesh.devices
    except (AttributeError, ValueError):  # AbstractMesh has the property and raises ValueError
        return Mesh(zip(mesh.axis_names, mesh.axis_sizes, strict=True), axis_types=types)
    sizes = devices.shape
    ids = [device.id for device in devices.flat]
    return Mesh(zip(mesh.axis_names, sizes, strict=True), device_ids=ids, axis_types=types)


def _axis_pairs(axes: Iterable[Any]) -> list[tuple[str, int]]:
    pairs = []
    for pair in axes:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise _not_a_mesh_error(axes)
        pairs.append((pair[0], pair[1]))
    return pairs


def _check_axes(
    pairs: Iterable[tuple[str, int]],
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    sizes: dict[str, int] = {}
    pairs = list(pairs)
    where = "mesh " + ",".join(map(_axis_text, pairs[:_MAX_AXES_IN_ERROR]))
    n_devices = 1
    for name, size in pairs:
        # JAX accepts any hashable name; text formats (`data=2`) need a printable string.
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise InvalidType(
                f"{short_repr(name)} is not a mesh axis name.",
                where=where,
                fix="printable text, such as 'data'.",
            )
        if name in sizes:
            raise DuplicateMeshAxis(
                f"The mesh has two axes named {short_repr(name)}.",
                where=where,
                fix="a different name for each axis.",
            )
        sizes[name] = parse_size(size, f"mesh axis {short_repr(name)}", at_least=1, where=where)
        # Capped: a thousand axes of 2**127 would make a product that takes seconds to print.
        n_devices = min(n_devices * sizes[name], _MAX_COUNT_IN_ERROR)
    if n_devices > MAX_DEVICES:
        raise InvalidSize(
            f"The mesh has {n_devices:,} devices{' or more' * (n_devices == _MAX_COUNT_IN_ERROR)}.",
            where=where,
            fix=f"at most {MAX_DEVICES:,} devices, the most that XLA can count.",
        )
    return tuple(sizes), tuple(sizes.values())


def _axis_text(pair: tuple[Any, Any]) -> str:
    """Return an axis as `name=size`, even if its name or size has the wrong type."""
    name, size = (item if type(item) in (str, int) else short_repr(item) for item in pair)
    return f"{name!s:.80}={short_repr(size)}"


def _check_device_ids(
    device_ids: Iterable[int] | None, sizes: tuple[int, ...]
) -> tuple[int, ...] | None:
    if device_ids is None:
        return None
    ids = tuple(device_ids)
    if len(ids) != prod(sizes):
        raise InvalidSize(
            f"The mesh has {prod(sizes)} positions and {len(ids)} device ids.",
            where=f"device ids {_ids_text(ids)}",
            fix="one device id for each position.",
        )
    # JAX accepts a device twice, and its devices_indices_map then loses one of the two.
    if len(set(ids)) != len(ids):
        raise DuplicateMeshAxis(
            "The mesh has the same device twice.",
            where=f"device ids {_ids_text(ids)}",
            fix="each device id once.",
        )
    # The default order is None, so that it equals, and hashes like, a mesh without device ids.
    return None if ids == tuple(range(len(ids))) else ids


def _axis_size_error(name: str, size: int, source: str) -> InvalidSize:
    return InvalidSize(
        f"The size of mesh axis {short_repr(name)} is {size}.",
        where=f"mesh {source:.200}",
        fix=f"a size from 1 to {MAX_DEVICES:,}.",
    )


def _not_a_mesh_error(mesh: object) -> InvalidType:
    return InvalidType(
        f"{short_repr(mesh)} is not a mesh.",
        fix='text such as "data=2,model=4", a mapping of names to sizes, or a JAX mesh.',
    )


def _range_sums(ranges: list[range]) -> Iterator[int]:
    """Yield the sums of one number from each range, the last range fastest."""
    # Not `itertools.product`: it first makes a tuple of each range, which may have 2**31 numbers.
    if not ranges:
        yield 0
        return
    for first in ranges[0]:
        if len(ranges) == 1:
            yield first
        else:
            yield from map(first.__add__, _range_sums(ranges[1:]))


def _ids_text(ids: Iterable[int], max_ids: int = 8) -> str:
    texts = [str(device) for device in ids]
    if len(texts) > max_ids:
        texts = [*texts[: max_ids - 2], "…", texts[-1]]
    return ", ".join(texts)


MeshSizes = tuple[tuple[str, int], ...]  # axis names and sizes, in mesh order


def mesh_text(sizes: Iterable[tuple[str, int]]) -> str:
    """Return mesh axes and sizes as text that `parse_mesh` reads; `()` for no axes.

    >>> mesh_text([("data", 2), ("model", 4)])
    'data=2,model=4'
    """
    return ",".join(f"{name}={size}" for name, size in sizes) or "()"


def folded_mesh_text(sizes: Iterable[tuple[str, int]]) -> str:
    """Return the mesh for a person to read: mesh axes of size 1 are only counted.

    >>> folded_mesh_text([("data", 1), ("fsdp", 8), ("stage", 1)])
    'fsdp=8 (and 2 axes of size 1)'
    >>> folded_mesh_text([("data", 1)])
    'data=1'
    """
    axes = list(sizes)
    larger = [(name, size) for name, size in axes if size > 1]
    n_folded = len(axes) - len(larger)
    if not larger or not n_folded:
        return mesh_text(axes)
    return f"{mesh_text(larger)} (and {n_folded} {'axis' if n_folded == 1 else 'axes'} of size 1)"
