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

# XLA counts devices in 32 bits: JAX answers `RuntimeError: std::bad_cast` beyond.
_MOST_SHOWN = 20  # axes in an error
_MOST_COUNTED = 10**100  # devices in an error: products of sizes grow without bounds
MAX_DEVICES = 2**31 - 1
# Listing more devices than this takes seconds and reads as a hang.
MAX_LISTED = 2**20
_DEVICE_EXAMPLE = "write an id, such as 5, or a coordinate, such as 1,2."
_EXAMPLE = "write name=size pairs, such as data=2,model=4."


@dataclass(frozen=True, init=False, repr=False)
class Mesh:
    """Ordered mesh axes and the devices along them.

    >>> Mesh(data=2, model=4)
    Mesh(data=2, model=4)
    >>> Mesh({"data": 2}, device_ids=(5, 3)).device_at((1,))
    3

    Devices are numbered 0, 1, ... with the last mesh axis running fastest, as in JAX, unless
    `device_ids` gives another order (None: the usual one). `axis_types` holds JAX's words, Auto
    unless told.
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
        names, numbers = _checked_axes(pairs)
        put = object.__setattr__
        put(self, "axis_names", names)
        put(self, "axis_sizes", numbers)
        put(self, "axis_types", tuple(axis_types) or ("Auto",) * len(names))
        put(self, "device_ids", _checked_ids(device_ids, numbers))

    @cached_property
    def shape(self) -> dict[str, int]:
        """Axis names and sizes, in order."""
        return dict(zip(self.axis_names, self.axis_sizes, strict=True))

    @cached_property
    def n_devices(self) -> int:
        return prod(self.axis_sizes)

    @property
    def devices(self) -> tuple[int, ...]:
        """Every device id, in mesh order."""
        if self.device_ids is not None:
            return self.device_ids
        self.check_listable()
        return tuple(range(self.n_devices))

    def coordinate(self, device: int) -> tuple[int, ...]:
        """Return the place of a device id: one number for each mesh axis."""
        position = self._position(device)
        place = []
        for size in reversed(self.axis_sizes):
            position, step = divmod(position, size)
            place.append(step)
        return tuple(reversed(place))

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Every coordinate, in mesh order."""
        self.check_listable()
        return product(*map(range, self.axis_sizes))

    def device_at(self, coordinate: Iterable[int]) -> int:
        """Return the device id at a coordinate."""
        place = tuple(coordinate)
        try:
            position = 0
            for at, size in zip(map(index, place), self.axis_sizes, strict=True):
                if not 0 <= at < size:
                    raise ValueError
                position = position * size + at
        except (TypeError, ValueError):  # not numbers, too few or many, outside
            raise self._no_device(f"coordinate {place}") from None
        return position if self.device_ids is None else self.device_ids[position]

    def devices_along(self, fixed: Mapping[str, int]) -> Iterator[int]:
        """Yield the devices at the given steps along some mesh axes, in mesh order.

        >>> list(Mesh(data=2, model=3).devices_along({"model": 1}))
        [1, 4]
        """
        offsets: list[range] = []
        stride = 1
        for name, size in reversed(self.shape.items()):
            start = fixed.get(name, 0) * stride
            stop = start + 1 if name in fixed else size * stride
            offsets.insert(0, range(start, stop, stride))
            stride *= size
        ids = self.device_ids
        positions = _sums(offsets)
        return positions if ids is None else (ids[at] for at in positions)

    def check_listable(self) -> None:
        """Refuse to list the devices of a mesh so large that it would read as a hang."""
        if self.n_devices > MAX_LISTED:
            raise TooManyDevices(
                f"The mesh has {self.n_devices:,} devices, too many to list one by one.",
                where=f"mesh {self}",
                fix=f"ask about one device, or use a mesh of at most {MAX_LISTED:,} devices.",
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain data: axes always, device order and axis types where not the usual ones."""
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
            parts.append(f"device_ids=({_shortened(self.device_ids)})")
        return f"Mesh({', '.join(parts)})"

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {device: at for at, device in enumerate(self.device_ids or ())}

    def _position(self, device: int) -> int:
        if self.device_ids is None and 0 <= device < self.n_devices:
            return device
        if self.device_ids is not None and device in self._positions:
            return self._positions[device]
        raise self._no_device(f"device {device}")

    def _no_device(self, asked: str) -> UnknownDevice:
        ids = self.device_ids
        known = f"0 to {self.n_devices - 1}" if ids is None else _shortened(sorted(ids))
        steps = ", ".join(f"{name} 0 to {size - 1}" for name, size in self.shape.items())
        return UnknownDevice(
            f"The mesh has no {asked}.",
            where=f"mesh {self}",
            fix=f"a device id ({known}) or a coordinate ({steps}).",
        )


def parse_mesh(mesh: Any) -> Mesh:
    """Return the mesh meant by text, a mapping, pairs, or a JAX Mesh or AbstractMesh.

    >>> parse_mesh("data=2, model=4") == parse_mesh({"data": 2, "model": 4})
    True
    >>> parse_mesh([("data", 2), ("model", 4)])
    Mesh(data=2, model=4)

    A `jax.sharding.Mesh` keeps its own order of devices and its axis types.
    """
    if isinstance(mesh, Mesh):
        return mesh
    if isinstance(mesh, str):
        return _parse_text(mesh)
    if isinstance(mesh, Mapping):
        return Mesh(mesh)
    if hasattr(mesh, "axis_names") and hasattr(mesh, "axis_types"):
        return _from_jax(mesh)
    if isinstance(mesh, Iterable):
        return Mesh(_pairs(mesh))
    raise _not_a_mesh(mesh)


def parse_device(source: str) -> int | tuple[int, ...]:
    """Return the device id or the coordinate that text gives.

    >>> parse_device("5"), parse_device("1,2"), parse_device("(1, 2)"), parse_device("1,")
    (5, (1, 2), (1, 2), (1,))
    """
    text = Scanner(source, kind="device")
    closing = ")" if text.take("(") else ""
    numbers: list[int] = []
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
def _parse_text(source: str) -> Mesh:
    text = Scanner(source, kind="mesh")
    if text.take("(") and text.take(")") and text.at_end:
        return Mesh()
    text = Scanner(source, kind="mesh")
    pairs: list[tuple[str, int]] = []
    seen: set[str] = set()
    while not text.at_end or not pairs:
        if (name := text.take_name()) is None:
            raise text.error("A mesh axis name was expected here.", fix=_EXAMPLE)
        if name in seen:
            said = f"Mesh axis {short_repr(name)} is here a second time."
            raise text.error(said, fix=_EXAMPLE, back=True)
        seen.add(name)
        if not (text.take("=") or text.take(":")):
            raise text.error(f"'=' was expected after {short_repr(name)}.", fix=_EXAMPLE)
        if (size := text.take_int()) is None:
            said = f"The size of mesh axis {short_repr(name)} was expected here."
            raise text.error(said, fix=_EXAMPLE)
        if not 1 <= size <= MAX_DEVICES:
            raise _bad_axis_size(name, size, source)
        pairs.append((name, size))
        if not text.take(",") and not text.at_end:
            raise text.error("',' was expected here.", fix=_EXAMPLE)
    return Mesh(pairs)


def _from_jax(mesh: Any) -> Mesh:
    """Read a jax.sharding.Mesh or AbstractMesh by its attributes, without importing JAX."""
    types = [getattr(kind, "name", str(kind)) for kind in mesh.axis_types or ()]
    try:
        devices = mesh.devices
    except (AttributeError, ValueError):  # AbstractMesh has the property and raises ValueError
        return Mesh(zip(mesh.axis_names, mesh.axis_sizes, strict=True), axis_types=types)
    sizes = devices.shape
    ids = [device.id for device in devices.flat]
    return Mesh(zip(mesh.axis_names, sizes, strict=True), device_ids=ids, axis_types=types)


def _pairs(axes: Iterable[Any]) -> list[tuple[str, int]]:
    pairs = []
    for pair in axes:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise _not_a_mesh(axes)
        pairs.append((pair[0], pair[1]))
    return pairs


def _checked_axes(
    pairs: Iterable[tuple[str, int]],
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    sizes: dict[str, int] = {}
    pairs = list(pairs)
    where = "mesh " + ",".join(map(_written, pairs[:_MOST_SHOWN]))
    total = 1
    for name, size in pairs:
        if not isinstance(name, str) or not name.isprintable() or not name:
            raise InvalidType(
                f"The mesh axis name {short_repr(name)} is not a name.",
                where=where,
                fix="text that can be printed, such as 'data'.",
            )
        if name in sizes:
            raise DuplicateMeshAxis(
                f"The mesh has two axes named {short_repr(name)}.",
                where=where,
                fix="a name for each axis.",
            )
        sizes[name] = parse_size(size, f"mesh axis {short_repr(name)}", at_least=1, where=where)
        total = min(total * sizes[name], _MOST_COUNTED)
    if total > MAX_DEVICES:
        raise InvalidSize(
            f"The mesh has {total:,} devices{' or more' * (total == _MOST_COUNTED)}.",
            where=where,
            fix=f"at most {MAX_DEVICES:,} devices, the most that XLA can count.",
        )
    return tuple(sizes), tuple(sizes.values())


def _written(pair: tuple[Any, Any]) -> str:
    """Return an axis as a person writes it, whatever stands in place of its name or its size."""
    name, size = (part if type(part) in (str, int) else short_repr(part) for part in pair)
    return f"{name!s:.80}={short_repr(size)}"


def _checked_ids(
    device_ids: Iterable[int] | None, sizes: tuple[int, ...]
) -> tuple[int, ...] | None:
    if device_ids is None:
        return None
    ids = tuple(device_ids)
    if len(ids) != prod(sizes):
        raise InvalidSize(
            f"The mesh has {prod(sizes)} places and {len(ids)} devices.",
            where=f"device ids {_shortened(ids)}",
            fix="one device id for each place.",
        )
    if len(set(ids)) != len(ids):
        raise DuplicateMeshAxis(
            "The mesh holds a device more than once.",
            where=f"device ids {_shortened(ids)}",
            fix="each device once.",
        )
    return None if ids == tuple(range(len(ids))) else ids


def _bad_axis_size(name: str, size: int, source: str) -> InvalidSize:
    return InvalidSize(
        f"The size of mesh axis {short_repr(name)} is {size}.",
        where=f"mesh {source:.200}",
        fix=f"a size from 1 to {MAX_DEVICES:,}.",
    )


def _not_a_mesh(mesh: object) -> InvalidType:
    return InvalidType(
        f"{short_repr(mesh)} is not a mesh.",
        fix='text such as "data=2,model=4", a mapping of names to sizes, or a JAX mesh.',
    )


def _sums(ranges: list[range]) -> Iterator[int]:
    """Yield the sums of one number from each range, the last range running fastest.

    Not `itertools.product`, which first makes a tuple of every range, however long.
    """
    if not ranges:
        yield 0
        return
    for first in ranges[0]:
        if len(ranges) == 1:
            yield first
        else:
            yield from map(first.__add__, _sums(ranges[1:]))


def _shortened(ids: Iterable[int], most: int = 8) -> str:
    shown = [str(device) for device in ids]
    if len(shown) > most:
        shown = [*shown[: most - 2], "…", shown[-1]]
    return ", ".join(shown)


MeshSizes = tuple[tuple[str, int], ...]  # a mesh: axis names and sizes, in mesh order


def mesh_text(sizes: Iterable[tuple[str, int]]) -> str:
    """Return mesh axes and sizes as text that `parse_mesh` reads; `()` for no axes.

    >>> mesh_text([("data", 2), ("model", 4)])
    'data=2,model=4'
    """
    return ",".join(f"{name}={size}" for name, size in sizes) or "()"
