"""Virtual devices and meshes of them: Python objects that JAX accepts as devices."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from shardlab import _jax
from shardlab._jax import device_hooks
from shardlab.sharding.mesh import parse_mesh


class VirtualDevice:
    """A device with everything that JAX reads from one: an id, a platform, a client.

    It prints as the host device that takes its place on a real machine, because programs compare
    and log these texts. `isinstance(device, VirtualDevice)` tells them apart.
    """

    platform = "cpu"
    device_kind = "cpu"  # not read from the real device: this must not start a backend
    # Of a device of another host: its own (`VirtualClient.devices`).
    process_index = 0
    host_id = 0
    task_id = 0

    # JAX accepts only `isinstance(x, jax.Device)`, a C++ class that cannot be instantiated.
    __class__ = property(lambda self: jax.Device)

    def __init__(self, id: int, client: Any) -> None:
        self.id = id
        self.client = client
        self.local_hardware_id = id

    def __repr__(self) -> str:
        return f"CpuDevice(id={self.id})"

    def __str__(self) -> str:
        return f"{self.platform}:{self.id}"

    def memory_stats(self) -> None:
        return None

    def addressable_memories(self) -> list[Any]:
        return [VirtualMemory(self, kind) for kind in self.client.memory_kinds()]

    def memory(self, kind: str) -> Any:
        if kind not in self.client.memory_kinds():
            # jaxlib's own sentence: programs that try kinds in turn may match it.
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
        """Copying or unpickling gives the same device: JAX compares devices by identity."""
        return virtual_device, (self.id,)


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
        # Real memories are numbered over all devices: CPU_DEVICE_3, PINNED_HOST_4, ...
        kinds = self.device.client.memory_kinds()
        name = "CPU_DEVICE" if self.kind == "device" else self.kind.upper()
        return f"{name}_{self.device.id * len(kinds) + kinds.index(self.kind)}"

    def addressable_by_devices(self) -> list[VirtualDevice]:
        return [self.device]


# Attributes that a virtual client takes from the real one. None of them takes a device as argument:
# jaxlib would read a Python object as if it were its own C++ device.
_SHARED_ATTRIBUTES = frozenset(
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


def real_client_attribute(name: str) -> Any:
    """Return an attribute of the real client, if it is valid for a virtual one."""
    if name not in _SHARED_ATTRIBUTES:
        raise AttributeError(f"a simulated client has no attribute {name!r}")
    return getattr(device_hooks.real_backend(), name)


@dataclass(frozen=True)
class HostPlace:
    """Which of several hosts this process is; devices are numbered host by host."""

    index: int
    n_hosts: int
    devices_per_host: Callable[[], int]  # a program may choose the number until it reads it


THE_ONLY_HOST = HostPlace(index=0, n_hosts=1, devices_per_host=lambda: 0)


class VirtualClient:
    """The client that owns all virtual devices; other attributes come from the real client."""

    platform = "cpu"

    def __init__(self) -> None:
        self._devices: list[VirtualDevice] = []
        self._lock = threading.Lock()
        self.host = THE_ONLY_HOST

    def become_host(self, host: HostPlace) -> None:
        """Make this process one of several hosts, for good and before any device exists."""
        self.host = host

    def devices(self, n_devices: int) -> list[VirtualDevice]:
        """Return the first `n_devices`; always the same object for the same id."""
        # Programs start threads, and JAX compares devices by identity.
        with self._lock:
            for id in range(len(self._devices), n_devices):
                self._devices.append(self._make_device(id))
        return self._devices[:n_devices]

    def _make_device(self, id: int) -> VirtualDevice:
        device = VirtualDevice(id, self)
        if self.host.n_hosts > 1:
            host = id // self.host.devices_per_host()
            device.process_index = device.host_id = device.task_id = host
            device.local_hardware_id = id - host * self.host.devices_per_host()
        return device

    def local_devices(self, n_devices: int, host: int | None = None) -> list[VirtualDevice]:
        """Return those of `n_devices` that belong to a host; without one, to this host."""
        if self.host.n_hosts == 1:
            return self.devices(n_devices) if not host else []
        per_host = self.host.devices_per_host()
        start = (self.host.index if host is None else host) * per_host
        return self.devices(n_devices)[start : start + per_host]

    def default_device(self) -> VirtualDevice:
        """Return the device of an array that was never placed: the first one of this host."""
        if self.host.n_hosts == 1:
            return self.devices(1)[0]
        first = self.host.index * self.host.devices_per_host()
        return self.devices(first + 1)[first]

    def process_index(self) -> int:
        return self.host.index

    @functools.cache  # noqa: B019  there is only one client, for the whole process
    def memory_kinds(self) -> tuple[str, ...]:
        """Return the memory kinds of the real device, its default first."""
        real = device_hooks.real_backend().local_devices()[0]
        default = real.default_memory().kind
        return (default, *(m.kind for m in real.addressable_memories() if m.kind != default))

    def get_default_layout(self, dtype: Any, shape: Any, device: Any = None) -> Any:
        real = device_hooks.real_backend()
        return real.get_default_layout(dtype, shape, real.local_devices()[0])

    def __getattr__(self, name: str) -> Any:
        return real_client_attribute(name)


CLIENT = VirtualClient()


# For good, when this module is loaded: a mesh may be made before or after simulated mode starts.
_jax.mark_virtual_meshes(lambda device: type(device) is VirtualDevice)


def virtual_device(id: int) -> VirtualDevice:
    return CLIENT.devices(id + 1)[id]


def virtual_mesh(mesh: Any) -> Mesh:
    """Return a `jax.sharding.Mesh` of virtual devices.

    `mesh` is text, a mapping, a `Mesh` or an `AbstractMesh`. Its axis types are kept; for text and
    mappings they are Auto.

    >>> virtual_mesh("data=2,model=4").devices.shape
    (2, 4)
    """
    if isinstance(mesh, Mesh) and is_virtual(mesh):
        return mesh
    parsed = parse_mesh(mesh)
    types = tuple(mesh.axis_types) if isinstance(mesh, (Mesh, AbstractMesh)) else None
    return _cached_mesh(tuple(parsed.axis_names), tuple(parsed.axis_sizes), types)


# Cached because the array of devices of a large mesh takes long to build.
@functools.lru_cache(maxsize=256)
def _cached_mesh(
    names: tuple[str, ...], sizes: tuple[int, ...], types: Sequence[AxisType] | None
) -> Mesh:
    devices = np.array(CLIENT.devices(int(np.prod(sizes))), dtype=object).reshape(sizes)
    return Mesh(devices, names, axis_types=tuple(types or (AxisType.Auto,) * len(names)))


def is_virtual(mesh: Any) -> bool:
    """Return whether a mesh, concrete or abstract, consists of virtual devices."""
    if isinstance(mesh, AbstractMesh):
        return _jax.is_virtual_kind(mesh)
    return mesh.devices.size > 0 and isinstance(mesh.devices.flat[0], VirtualDevice)
