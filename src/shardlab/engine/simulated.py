"""`with shardlab.simulated(devices=512):` an unchanged JAX program, as if there were 512 devices."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from shardlab.engine import execute, labels, placement
from shardlab.engine._jax import seams
from shardlab.engine.backend import DeviceCount, VirtualBackend
from shardlab.errors import BadDeviceCount

_lock = threading.RLock()
_counts: list[DeviceCount] = []
_seams = seams.Seams()


@contextlib.contextmanager
def simulated(devices: int | None = None) -> Iterator[None]:
    """Run what is inside as if the machine had `devices` devices.

    >>> import jax
    >>> with simulated(devices=512):
    ...     mesh = jax.make_mesh((16, 32), ("data", "model"))
    ...     n_devices = len(jax.devices())
    >>> n_devices, len(jax.devices())
    (512, 1)

    With no number the program's own wish counts (`XLA_FLAGS`, `jax_num_cpu_devices`), or 8. The
    mode is the whole process's; leaving it, also by an exception, leaves JAX as it was. Arrays
    made inside stay valid outside as ordinary arrays on the one real device.
    """
    count = DeviceCount(_checked(devices))
    with _lock:
        # The real backend must exist, with its one device, before the program can ask for more.
        seams.real_backend()
        _counts.append(count)
        if len(_counts) == 1:
            _install()
        _seams.enter(count)
    try:
        yield
    finally:
        with _lock:
            _counts.remove(count)
            if _counts:
                _seams.enter(_counts[-1])
            else:
                _seams.restore()


def is_active() -> bool:
    """Say whether simulated mode is on."""
    return bool(_counts)


def _checked(devices: Any) -> int | None:
    if devices is None:
        return None
    if isinstance(devices, bool) or not isinstance(devices, (int, np.integer)) or devices < 1:
        raise BadDeviceCount(
            f"A machine cannot have {devices!r} devices.",
            where=f"simulated(devices={devices!r})",
            fix="give a whole number from 1, such as simulated(devices=512).",
        )
    return int(devices)


# ------------------------------------------------------------------------------- taking over


def _install() -> None:
    replace = _seams.replace
    try:
        replace(seams.xla_bridge, "get_backend", _get_backend)
        replace(seams.xla_bridge, "backends_are_initialized", seams.in_mode(_is_initialized))
        replace(seams.pjit, "_pjit_call_impl_python", seams.in_mode(execute.call_jit))
        replace(seams.dispatch, "_batched_device_put_impl", seams.in_mode(_device_put))
        _replace_array_makers(replace)
        _replace_array_answers(replace)
    except BaseException:
        _seams.restore()
        raise


def _replace_array_makers(replace: Callable[..., None]) -> None:
    for owner in (seams.array_lib, jax):
        replace(owner, "make_array_from_callback", seams.in_mode(_from_callback))
        replace(owner, "make_array_from_process_local_data", seams.in_mode(_from_local_data))
        replace(owner, "make_array_from_single_device_arrays", seams.in_mode(_from_pieces))


def _replace_array_answers(replace: Callable[..., None]) -> None:
    array = seams.ArrayImpl
    replace(array, "sharding", seams.property_in_mode(lambda x, _: labels.sharding_of(x)))
    replace(array, "_committed", seams.property_in_mode(lambda x, _: labels.is_committed(x)))
    replace(
        array, "addressable_shards", seams.property_in_mode(lambda x, _: labels.shards_of(x))
    )
    replace(array, "addressable_data", seams.in_mode(lambda x, i: labels.shards_of(x)[i].data))
    for name in ("_value", "copy_to_host_async"):
        replace(array, name, seams.really)


def _get_backend(original: Any) -> Any:
    def get_backend(platform: Any = None) -> Any:
        client = original(platform)
        if seams.is_real() or getattr(client, "platform", None) != "cpu":
            return client
        return VirtualBackend(client, _counts[-1])

    return get_backend


def _is_initialized() -> bool:
    """A program may still choose its device count until it has looked at the devices."""
    return _counts[-1].is_settled


# ---------------------------------------------------------------------------- arrays on devices


def _device_put(
    *xs: Any, devices: Any, srcs: Any, copy_semantics: Any, dst_avals: Any
) -> list[Any]:
    return [
        _put(x, target, copy)
        for x, target, copy in zip(xs, devices, copy_semantics, strict=True)
    ]


def _put(x: Any, target: Any, copy: Any) -> Any:
    sharding = _target_sharding(x, target)
    semantics = seams.dispatch.ArrayCopySemantics
    donated = copy == semantics.DONATE_INPUT and isinstance(x, jax.Array)
    if isinstance(x, jax.Array) and copy == semantics.REUSE_INPUT:
        if target is None or labels.label_of(x) == sharding:
            return x
    with seams.real():
        new = jax.numpy.array(x, copy=True)
    if donated:
        x.delete()
    return labels.attach(new, sharding, committed=target is not None)


def _target_sharding(x: Any, target: Any) -> Any:
    target = getattr(target, "sharding", target)  # a Format carries one
    if target is None:
        return labels.label_of(x)
    if isinstance(target, seams.Device):
        return seams.SingleDeviceSharding(target)
    return placement.concrete(target)


def _from_callback(
    shape: Any, sharding: Any, data_callback: Any, dtype: Any = None
) -> Any:
    """Ask for each distinct slice once, as the program would on one process."""
    shape = tuple(shape)
    whole: Any = None
    seen = set()
    for index in sharding.addressable_devices_indices_map(shape).values():
        key = tuple((s.start, s.stop) for s in index)
        if key in seen:
            continue
        seen.add(key)
        piece = np.asarray(data_callback(index))
        if piece.shape != sharding.shard_shape(shape):
            raise ValueError(
                f"the callback returned shape {piece.shape} for index {index}, "
                f"where a shard has shape {sharding.shard_shape(shape)}"
            )
        if whole is None:
            whole = np.empty(shape, dtype or piece.dtype)
        whole[index] = piece
    with seams.real():
        array = jax.numpy.asarray(whole)
    return labels.attach(array, sharding)


def _from_local_data(sharding: Any, local_data: Any, global_shape: Any = None) -> Any:
    """One process holds all of it."""
    return jax.device_put(np.asarray(local_data), sharding)


def _from_pieces(shape: Any, sharding: Any, arrays: Any, *, dtype: Any = None) -> Any:
    """Put single-device arrays together, each where its own device stands."""
    by_device = {next(iter(array.devices())): array for array in arrays}
    devices = sharding.addressable_devices_indices_map(tuple(shape))
    missing = [d for d in devices if d not in by_device]
    if missing:
        raise ValueError(
            f"make_array_from_single_device_arrays got no array for {missing[0]!r} "
            f"({len(missing)} of {len(devices)} devices are missing)"
        )
    whole = np.empty(tuple(shape), dtype or arrays[0].dtype)
    for device, index in devices.items():
        whole[index] = np.asarray(by_device[device])
    with seams.real():
        array = jax.numpy.asarray(whole)
    return labels.attach(array, sharding)
