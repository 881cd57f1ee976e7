"""The backend of a simulated program: the real CPU client with as many devices as requested.

The number of devices may come from the caller, from `jax_num_cpu_devices`, or from the flag
`--xla_force_host_platform_device_count` in `XLA_FLAGS`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import jax

from shardlab._jax import device_hooks
from shardlab._jax.saved_config import use_one_cpu_device
from shardlab.simulator.virtual_devices.devices import CLIENT, VirtualDevice

_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def parse_device_count(flags: str) -> int | None:
    """Return the device count in XLA's flags, the last one if there are several.

    >>> parse_device_count("--xla_cpu_foo=1 --xla_force_host_platform_device_count=8")
    8
    """
    counts = _FLAG.findall(flags)
    return int(counts[-1]) if counts and int(counts[-1]) > 0 else None


def remove_device_count(flags: str) -> str:
    """Return the flags without the device count.

    >>> remove_device_count("--xla_cpu_foo=1 --xla_force_host_platform_device_count=8")
    '--xla_cpu_foo=1'
    """
    return " ".join(_FLAG.sub("", flags).split())


def environment_device_count() -> int | None:
    return parse_device_count(os.environ.get("XLA_FLAGS", ""))


@contextlib.contextmanager
def hide_device_count() -> Iterator[None]:
    """Within this block XLA_FLAGS has no device count."""
    flags = os.environ.get("XLA_FLAGS")
    if flags is None:
        yield
        return
    os.environ["XLA_FLAGS"] = remove_device_count(flags)
    try:
        yield
    finally:
        os.environ["XLA_FLAGS"] = flags


class VirtualBackend:
    """The real CPU client, with virtual devices instead of its own."""

    platform = "cpu"

    def __init__(self, count: DeviceCount) -> None:
        self._count = count

    def devices(self) -> list[VirtualDevice]:
        return CLIENT.devices(self._count.fix_count())

    # JAX reads the devices of a client under each of these names.
    _get_all_devices = devices

    def local_devices(self) -> list[VirtualDevice]:
        return CLIENT.local_devices(self._count.fix_count())

    def device_count(self) -> int:
        return self._count.fix_count()

    def local_device_count(self) -> int:
        return self._count.fix_count() // self._count.n_hosts

    def process_index(self) -> int:
        return CLIENT.process_index()

    def __getattr__(self, name: str) -> Any:
        return getattr(CLIENT, name)


class DeviceCount:
    """The number of devices: given by the caller, or chosen by the program until it reads it.

    A program may set `jax_num_cpu_devices` or `XLA_FLAGS` until JAX starts its backend, which is
    when it first asks for devices. The count is fixed at the same moment here.
    """

    def __init__(self, requested: int | None, default: int = 8, n_hosts: int = 1) -> None:
        self._requested = requested
        self._default = default
        self.n_hosts = n_hosts
        self._count: int | None = requested
        # Whether the program has used a device: JAX's backend starts then, and refuses
        # `jax_num_cpu_devices` and `jax.distributed.initialize` from then on.
        self.is_read_by_program = False

    @property
    def key(self) -> object:
        """Separates compiled calls of this machine from others; equal for equal machines."""
        # Without a request two modes may end up with different counts, so they are never equal.
        return self if self._requested is None else ("simulated", self._requested)

    def reset_count(self) -> None:
        """Let the program choose again, as after `clear_backends`."""
        self._count = self._requested
        self.is_read_by_program = False

    def fix_count(self) -> int:
        """Return the number of devices; from now on it does not change."""
        self.is_read_by_program = True
        if self._count is None:
            # On several hosts these settings say how many devices one of them has.
            per_host = _config_device_count() or environment_device_count() or self._default
            self._count = per_host * self.n_hosts
        return self._count


def _config_device_count() -> int | None:
    count = jax.config.jax_num_cpu_devices
    return int(count) if count and count > 0 else None


def start_real_backend() -> None:
    """Start the real backend, if it is not running, with one device whatever the settings say.

    XLA reads its flags once, when the backend starts, so they must not be visible to it then.
    """
    with hide_device_count(), use_one_cpu_device():
        device_hooks.real_backend()
