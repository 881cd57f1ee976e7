"""Simulated mode: an unchanged JAX program runs as if the machine had many devices.

`with shardlab.simulated(devices=512):` gives JAX 512 virtual devices.
`with mesh_in_context("data=8") as mesh:` also sets a mesh of them. Unlike `retarget_programs` it
does not replace the meshes that a program makes itself.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

# Loading it hooks JAX's shard_map: a program in simulated mode calls that one, never shardlab's.
import shardlab.simulator.shard_map  # noqa: F401
from shardlab._jax import device_hooks
from shardlab._jax.saved_config import SavedConfig
from shardlab.errors import InvalidDeviceCount
from shardlab.simulator.hosts.world import has_hosts
from shardlab.simulator.virtual_devices.array_labels import (
    addressable_data,
    aval_with_sharding,
    check_fetchable,
    global_shards,
    is_committed,
    lazy_shards,
    sharding_of,
)
from shardlab.simulator.virtual_devices.backend import (
    DeviceCount,
    VirtualBackend,
    start_real_backend,
)
from shardlab.simulator.virtual_devices.device_put import (
    assemble_shards,
    batched_device_put,
    device_put,
)
from shardlab.simulator.virtual_devices.devices import CLIENT, virtual_mesh
from shardlab.simulator.virtual_devices.jit_execution import compile_simulated, lower_simulated

_lock = threading.RLock()
# Modes nest; the innermost is the last. Threads may enter and leave in any order.
_counts: list[DeviceCount] = []


@contextlib.contextmanager
def simulated(devices: int | None = None) -> Iterator[DeviceCount]:
    """Run the code within this block as if the machine had `devices` devices.

    >>> import jax
    >>> with simulated(devices=512):
    ...     mesh = jax.make_mesh((16, 32), ("data", "model"))
    ...     n_devices = len(jax.devices())
    >>> n_devices, len(jax.devices())
    (512, 1)

    With no number the program's own setting counts (`XLA_FLAGS`, `jax_num_cpu_devices`), or 8. The
    mode applies to the whole process. Leaving it, also by an exception, restores JAX including its
    settings (`jax.config`, `jax.set_mesh`). Arrays made inside stay valid outside as ordinary
    arrays on the one real device.
    """
    count = DeviceCount(_check_device_count(devices), n_hosts=CLIENT.host.n_hosts)
    settings = SavedConfig()
    with _lock:
        # Before the program runs: it may set flags that would give the real backend more devices.
        start_real_backend()
        _counts.append(count)
        if len(_counts) == 1:
            _install_hooks()
        device_hooks.set_mode_key(count.key)
    try:
        yield count
    finally:
        with _lock:
            settings.restore()
            _counts.remove(count)
            if _counts:
                device_hooks.set_mode_key(_counts[-1].key)
            else:
                _remove_hooks()


def is_active() -> bool:
    """Return whether simulated mode is on."""
    return bool(_counts)


# Each device is a Python object and a mesh lists them all: more would take minutes and gigabytes.
_MAX_DEVICES = 2**20


def _check_device_count(devices: Any) -> int | None:
    if devices is None:
        return None
    is_count = isinstance(devices, (int, np.integer)) and not isinstance(devices, bool)
    if not is_count or not 1 <= devices <= _MAX_DEVICES:
        raise InvalidDeviceCount(
            f"A machine cannot have {devices!r} devices.",
            where=f"simulated(devices={devices!r})",
            fix=f"give an integer from 1 to {_MAX_DEVICES}, such as simulated(devices=512).",
        )
    return int(devices)


# ----------------------------------------------------------------------------------- hooks


def _install_hooks() -> None:
    """Replace the functions of JAX that touch devices (see `_jax/device_hooks.py`)."""
    patches, when_simulated = device_hooks.DEVICE_PATCHES, device_hooks.when_simulated
    bridge, computation = device_hooks.xla_bridge, device_hooks.pxla.MeshComputation
    # Functions that JAX's modules, or the program, import by name.
    imported_functions = (
        (bridge, "get_backend", _make_get_backend),
        (bridge, "local_devices", when_simulated(_local_devices)),
        (bridge, "process_count", when_simulated(_process_count)),
        (bridge, "backends_are_initialized", when_simulated(_backends_are_initialized)),
        (bridge, "_clear_backends", when_simulated(_clear_backends)),
        (
            device_hooks.array_lib,
            "make_array_from_single_device_arrays",
            when_simulated(assemble_shards),
        ),
        (device_hooks.pxla, "batched_device_put", when_simulated(batched_device_put)),
    )
    functions = (
        (device_hooks.dispatch, "_batched_device_put_impl", when_simulated(device_put)),
        (device_hooks.pjit, "_resolve_and_lower", when_simulated(lower_simulated)),
        (computation, "compile", when_simulated(compile_simulated)),
        (computation, "cost_analysis", when_simulated(device_hooks.lowered_cost_analysis)),
    )
    try:
        for owner, name, make_replacement in imported_functions:
            patches.replace_everywhere(owner, name, make_replacement)
        for owner, name, make_replacement in functions:
            patches.replace(owner, name, make_replacement)
        for name, make_replacement in _array_replacements().items():
            patches.replace(device_hooks.ArrayImpl, name, make_replacement)
    except BaseException:
        _remove_hooks()
        raise


def _array_replacements() -> dict[str, Callable[[Any], Any]]:
    """Return the attributes of an array that say where it is, read from its label instead."""
    read_label = device_hooks.property_when_simulated
    return {
        "sharding": read_label(lambda array, _: sharding_of(array)),
        "aval": read_label(aval_with_sharding),
        "_committed": read_label(lambda array, _: is_committed(array)),
        "addressable_shards": read_label(lambda array, _: lazy_shards(array)),
        "addressable_data": device_hooks.when_simulated(addressable_data),
        "global_shards": read_label(lambda array, _: global_shards(array)),
        "_value": read_label(_fetch_value),
        # It reads the buffer, and would look for the devices of the label.
        "copy_to_host_async": device_hooks.run_with_real_jax,
    }


def _fetch_value(array: Any, read_value: Callable[[Any], Any]) -> Any:
    if has_hosts():
        check_fetchable(array)
    with device_hooks.use_real_jax():
        return read_value(array)


def _remove_hooks() -> None:
    device_hooks.set_mode_key(None)
    device_hooks.DEVICE_PATCHES.restore_originals()


def _make_get_backend(original: Any) -> Any:
    @functools.wraps(original)
    def get_backend(platform: Any = None) -> Any:
        if isinstance(platform, VirtualBackend):
            return platform
        client = original(platform)
        if not device_hooks.is_simulated() or getattr(client, "platform", None) != "cpu":
            return client
        return VirtualBackend(_counts[-1])

    # jax.clear_caches calls it; a function has no such attribute for mypy.
    get_backend.cache_clear = original.cache_clear  # type: ignore[attr-defined]
    return get_backend


def _local_devices(process_index: Any = None, backend: Any = None, host_id: Any = None) -> Any:
    # JAX's own function caches its result for good, so it must not see virtual devices.
    host = host_id if process_index is None else process_index
    if host is not None and not 0 <= host < CLIENT.host.n_hosts:
        raise ValueError(f"Unknown process_index {host}")
    return CLIENT.local_devices(len(device_hooks.xla_bridge.devices(backend)), host)


def _process_count(backend: Any = None) -> int:
    del backend
    return CLIENT.host.n_hosts


def devices_per_host() -> int:
    """Return how many devices each virtual host has; from now on it does not change."""
    return _counts[-1].fix_count() // CLIENT.host.n_hosts


def _clear_backends() -> None:
    """Reset the number of virtual devices; the real backend must not restart with more of them."""
    _counts[-1].reset_count()


def _backends_are_initialized() -> bool:
    """A program may set its device count until it first reads the devices."""
    return _counts[-1].is_read_by_program


@contextlib.contextmanager
def mesh_in_context(mesh: Any) -> Iterator[Mesh]:
    """Yield a `jax.sharding.Mesh` of virtual devices, set as the mesh in context."""
    target = virtual_mesh(mesh)
    with simulated(target.size), jax.set_mesh(target):
        yield target
