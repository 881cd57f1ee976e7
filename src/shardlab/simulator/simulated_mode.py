"""`with shardlab.simulated(devices=512):` an unchanged JAX program, as if on 512 devices.

`with mesh_in_context("data=8") as mesh:` simulated mode, with this mesh in context.

Unlike `retargeted` it leaves the meshes alone that a program makes itself.
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
from shardlab._jax import device_hooks as seams
from shardlab._jax.saved_config import SavedConfig
from shardlab.errors import InvalidDeviceCount
from shardlab.simulator.virtual_devices import array_labels as labels
from shardlab.simulator.virtual_devices import device_put as put
from shardlab.simulator.virtual_devices import jit_execution as execute
from shardlab.simulator.virtual_devices.backend import DeviceCount, VirtualBackend, start_real
from shardlab.simulator.virtual_devices.devices import virtual_mesh

_lock = threading.RLock()
_counts: list[DeviceCount] = []


@contextlib.contextmanager
def simulated(devices: int | None = None) -> Iterator[DeviceCount]:
    """Run what is inside as if the machine had `devices` devices.

    >>> import jax
    >>> with simulated(devices=512):
    ...     mesh = jax.make_mesh((16, 32), ("data", "model"))
    ...     n_devices = len(jax.devices())
    >>> n_devices, len(jax.devices())
    (512, 1)

    With no number the program's own wish counts (`XLA_FLAGS`, `jax_num_cpu_devices`), or 8. The
    mode is the whole process's; leaving it, also by an exception, leaves JAX as it was, settings
    (`jax.config`, `jax.set_mesh`) included. Arrays made inside stay valid outside as ordinary
    arrays on the one real device.
    """
    count = DeviceCount(_checked(devices))
    settings = SavedConfig()
    with _lock:
        # The real backend must exist, with its one device, before the program can ask for more.
        start_real()
        _counts.append(count)
        if len(_counts) == 1:
            _install()
        seams.SEAMS.enter(count.key)
    try:
        yield count
    finally:
        with _lock:
            settings.restore()
            _counts.remove(count)
            if _counts:
                seams.SEAMS.enter(_counts[-1].key)
            else:
                seams.SEAMS.restore()


def is_active() -> bool:
    """Say whether simulated mode is on."""
    return bool(_counts)


# Each device is a Python object and a mesh lists them all: beyond this, minutes and gigabytes.
_MOST = 2**20


def _checked(devices: Any) -> int | None:
    if devices is None:
        return None
    is_count = isinstance(devices, (int, np.integer)) and not isinstance(devices, bool)
    if not is_count or not 1 <= devices <= _MOST:
        raise InvalidDeviceCount(
            f"A machine cannot have {devices!r} devices.",
            where=f"simulated(devices={devices!r})",
            fix=f"give a whole number from 1 to {_MOST}, such as simulated(devices=512).",
        )
    return int(devices)


# ------------------------------------------------------------------------------- taking over


def _install() -> None:
    replace, everywhere = seams.SEAMS.replace, seams.SEAMS.replace_everywhere
    bridge, arrays = seams.xla_bridge, seams.array_lib
    try:
        everywhere(bridge, "get_backend", _get_backend)
        everywhere(bridge, "local_devices", seams.in_mode(_local_devices))
        everywhere(bridge, "backends_are_initialized", seams.in_mode(_is_initialized))
        everywhere(bridge, "_clear_backends", seams.in_mode(_clear_backends))
        everywhere(arrays, "make_array_from_single_device_arrays", seams.in_mode(put.from_pieces))
        everywhere(seams.pxla, "batched_device_put", seams.in_mode(put.batched_device_put))
        replace(seams.dispatch, "_batched_device_put_impl", seams.in_mode(put.device_put))
        replace(seams.pjit, "_resolve_and_lower", seams.in_mode(execute.lower))
        replace(seams.pxla.MeshComputation, "compile", seams.in_mode(execute.compile))
        replace(seams.pxla.MeshComputation, "cost_analysis", seams.in_mode(seams.lowered_cost))
        _replace_array_answers(replace)
    except BaseException:
        seams.SEAMS.restore()
        raise


def _replace_array_answers(replace: Callable[..., None]) -> None:
    array = seams.ArrayImpl
    replace(array, "sharding", seams.property_in_mode(lambda x, _: labels.sharding_of(x)))
    replace(array, "_committed", seams.property_in_mode(lambda x, _: labels.is_committed(x)))
    replace(array, "addressable_shards", seams.property_in_mode(lambda x, _: labels.shards_of(x)))
    replace(array, "addressable_data", seams.in_mode(lambda x, i: labels.shards_of(x)[i].data))
    for name in ("_value", "copy_to_host_async"):
        replace(array, name, seams.really)


def _get_backend(original: Any) -> Any:
    @functools.wraps(original)
    def get_backend(platform: Any = None) -> Any:
        if isinstance(platform, VirtualBackend):
            return platform
        client = original(platform)
        if not seams.is_simulated() or getattr(client, "platform", None) != "cpu":
            return client
        return VirtualBackend(_counts[-1])

    # JAX clears it by this name; a function has no such attribute for mypy.
    get_backend.cache_clear = original.cache_clear  # type: ignore[attr-defined]
    return get_backend


def _local_devices(process_index: Any = None, backend: Any = None, host_id: Any = None) -> Any:
    """JAX remembers its answer for ever, so its own function must not see virtual devices."""
    if (process_index or host_id or 0) != 0:
        raise ValueError(f"Unknown process_index {process_index or host_id}")
    return seams.xla_bridge.devices(backend)


def _clear_backends() -> None:
    """Forget the virtual devices; the real backend must not start again with more of them."""
    _counts[-1].unsettle()


def _is_initialized() -> bool:
    """A program may still choose its device count until it has looked at the devices."""
    return _counts[-1].is_settled


@contextlib.contextmanager
def mesh_in_context(mesh: Any) -> Iterator[Mesh]:
    """Yield a `jax.sharding.Mesh` of virtual devices; the machine has as many."""
    target = virtual_mesh(mesh)
    with simulated(target.size), jax.set_mesh(target):
        yield target
