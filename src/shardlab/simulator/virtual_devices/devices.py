"""Devices and meshes that exist only here."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardlab import _jax
from shardlab._jax import device_hooks as seams
from shardlab.sharding.mesh import parse_mesh

# What tells a simulated mesh from a real one, also when only its AbstractMesh is left.
DEVICE_KIND = _jax.VIRTUAL_KIND


class VirtualDevice:
    """A device as JAX sees one from the outside: an id, a platform, a client."""

    platform = "cpu"
    device_kind = DEVICE_KIND
    process_index = 0
    host_id = 0

    # JAX asks `isinstance(x, jax.Device)` before it takes something for a device.
    __class__ = property(lambda self: jax.Device)

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
        return [VirtualMemory(self, kind) for kind in self.client.memory_kinds()]

    def memory(self, kind: str) -> Any:
        if kind not in self.client.memory_kinds():
            # jaxlib's words, so that a program that tries kinds in turn works the same.
            kinds = ", ".join(self.client.memory_kinds())
            raise ValueError(
                f"Could not find memory addressable by device {self.device_kind}. Device "
                f"{self.device_kind} can address the following memory kinds: {kinds}. "
                f"Got memory kind: {kind}"
            )
        return VirtualMemory(self, kind)

    def default_memory(self) -> Any:
        return VirtualMemory(self, self.client.memory_kinds()[0])

    def live_buffers(self) -> list[Any]:
        return [array for array in jax.live_arrays() if self in array.devices()]

    def __reduce__(self) -> Any:
        """The same device again, also in a copy."""
        return device, (self.id,)


class VirtualMemory(str):
    """One memory of a virtual device.

    A str, because jaxlib compares the memories of a device that is not its own with the kind.
    """

    __slots__ = ("device",)

    platform = "cpu"
    process_index = 0
    device: VirtualDevice

    def __new__(cls, device: VirtualDevice, kind: str) -> VirtualMemory:
        memory = super().__new__(cls, kind)
        memory.device = device
        return memory

    @property
    def kind(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"VIRTUAL_CPU_{self.kind.upper()}_{self.device.id}"

    def addressable_by_devices(self) -> list[VirtualDevice]:
        return [self.device]


# What a virtual machine shares with the real one. Nothing that takes a device: jaxlib reads the
# memory of whatever it is given as one.
_SHARED = frozenset(
    {
        "_raw_platform",
        "defragment",
        "heap_profile",
        "is_c_api",
        "live_arrays",
        "live_buffers",
        "live_executables",
        "platform_version",
        "runtime_type",
        "serialize_with_sdy",
    }
)


def shared_answer(name: str) -> Any:
    """Return an attribute of the real client, where it is one that fits a virtual machine."""
    if name not in _SHARED:
        raise AttributeError(f"a simulated client has no attribute {name!r}")
    return getattr(seams.real_backend(), name)


class VirtualClient:
    """The owner of all virtual devices; asks the real client for anything else."""

    platform = "cpu"

    def __init__(self) -> None:
        self._made: list[VirtualDevice] = []
        self._lock = threading.Lock()

    def devices(self, n_devices: int) -> list[VirtualDevice]:
        """Return the first `n_devices`; the same object for the same id, always."""
        with self._lock:
            for id in range(len(self._made), n_devices):
                self._made.append(VirtualDevice(id, self))
        return self._made[:n_devices]

    def process_index(self) -> int:
        return 0

    @functools.cache  # noqa: B019  there is one client for ever
    def memory_kinds(self) -> tuple[str, ...]:
        """Return the kinds that the real device has, its default first."""
        real = seams.real_backend().local_devices()[0]
        default = real.default_memory().kind
        others = [m.kind for m in real.addressable_memories() if m.kind != default]
        return (default, *others)

    def get_default_layout(self, dtype: Any, shape: Any, device: Any = None) -> Any:
        real = seams.real_backend()
        return real.get_default_layout(dtype, shape, real.local_devices()[0])

    def __getattr__(self, name: str) -> Any:
        return shared_answer(name)


CLIENT = VirtualClient()


def device(id: int) -> VirtualDevice:
    return CLIENT.devices(id + 1)[id]


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
