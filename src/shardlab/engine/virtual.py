"""Devices and meshes that exist only here."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardlab.layouts.mesh import parse_mesh

# What tells a simulated mesh from a real one, also when only its AbstractMesh is left.
DEVICE_KIND = "virtual cpu"


class VirtualDevice:
    """A device as JAX sees one from the outside: an id, a platform, a client."""

    platform = "cpu"
    device_kind = DEVICE_KIND
    process_index = 0
    host_id = 0
    slice_index = 0

    # JAX asks `isinstance(x, jax.Device)` before it takes something for a device.
    __class__ = property(lambda self: jax.Device)  # type: ignore[assignment]

    def __init__(self, id: int, client: Any) -> None:
        self.id = id
        self.client = client
        self.local_hardware_id = id

    def __repr__(self) -> str:
        return f"VirtualDevice(id={self.id})"

    def __str__(self) -> str:
        return f"VIRTUAL_CPU_{self.id}"

    def memory_stats(self) -> None:
        return None

    def addressable_memories(self) -> list[Any]:
        return [self.default_memory()]

    def memory(self, kind: str) -> Any:
        return self.default_memory()

    def default_memory(self) -> Any:
        return VirtualMemory(self)


class VirtualMemory:
    """The one memory of a virtual device."""

    kind = "device"

    def __init__(self, device: VirtualDevice) -> None:
        self.device = device

    def addressable_by_devices(self) -> list[VirtualDevice]:
        return [self.device]


class VirtualClient:
    """The owner of all virtual devices; asks the real client for anything else."""

    platform = "cpu"

    def __init__(self) -> None:
        self._made: list[VirtualDevice] = []

    def devices(self, n_devices: int) -> list[VirtualDevice]:
        """Return the first `n_devices`; the same object for the same id, always."""
        for id in range(len(self._made), n_devices):
            self._made.append(VirtualDevice(id, self))
        return self._made[:n_devices]

    def process_index(self) -> int:
        return 0


CLIENT = VirtualClient()


def virtual_mesh(mesh: Any) -> Mesh:
    """Return a `jax.sharding.Mesh` of virtual devices.

    `mesh` is text, a mapping, a `Mesh` or an `AbstractMesh`; axis types are kept where given and
    are Auto otherwise.

    >>> virtual_mesh("data=2,model=4").devices.shape
    (2, 4)
    """
    if isinstance(mesh, Mesh) and is_virtual(mesh):
        return mesh
    parsed = parse_mesh(mesh)
    types = tuple(mesh.axis_types) if isinstance(mesh, (Mesh, AbstractMesh)) else None
    return _mesh(tuple(parsed.axis_names), tuple(parsed.axis_sizes), types)


@functools.lru_cache(maxsize=256)
def _mesh(names: tuple[str, ...], sizes: tuple[int, ...], types: Sequence[AxisType] | None) -> Mesh:
    devices = np.array(CLIENT.devices(int(np.prod(sizes))), dtype=object).reshape(sizes)
    return Mesh(devices, names, axis_types=tuple(types or (AxisType.Auto,) * len(names)))


def is_virtual(mesh: Any) -> bool:
    """Say whether a mesh, concrete or abstract, is of virtual devices."""
    if isinstance(mesh, AbstractMesh):
        device = getattr(mesh, "abstract_device", None)
        return device is not None and device.device_kind == DEVICE_KIND
    return mesh.devices.size > 0 and isinstance(mesh.devices.flat[0], VirtualDevice)


def real_device() -> Any:
    """Return the one device that computes everything."""
    return jax.local_devices(backend="cpu")[0]
