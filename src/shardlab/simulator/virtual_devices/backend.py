"""The backend that a simulated program finds: the real client, with as many devices as it wants.

The device count that a person asks XLA for in its flags.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

import jax

from shardlab._jax import device_hooks as seams
from shardlab._jax.saved_config import use_one_cpu_device
from shardlab.simulator.virtual_devices.devices import CLIENT, VirtualDevice

_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


def count_in(flags: str) -> int | None:
    """Return the count that flags ask for, the last one if there are several.

    >>> count_in("--xla_cpu_foo=1 --xla_force_host_platform_device_count=8")
    8
    """
    found = _FLAG.findall(flags)
    return int(found[-1]) if found and int(found[-1]) > 0 else None


def without_count(flags: str) -> str:
    """Return the flags without the count.

    >>> without_count("--xla_cpu_foo=1 --xla_force_host_platform_device_count=8")
    '--xla_cpu_foo=1'
    """
    return " ".join(_FLAG.sub("", flags).split())


def count_in_environment() -> int | None:
    return count_in(os.environ.get("XLA_FLAGS", ""))


@contextlib.contextmanager
def hidden_count() -> Iterator[None]:
    """Within this block XLA_FLAGS asks for no device count; afterwards it does again."""
    flags = os.environ.get("XLA_FLAGS")
    if flags is None:
        yield
        return
    os.environ["XLA_FLAGS"] = without_count(flags)
    try:
        yield
    finally:
        os.environ["XLA_FLAGS"] = flags


class VirtualBackend:
    """The real CPU client with virtual devices in the place of its own."""

    platform = "cpu"

    def __init__(self, wanted: DeviceCount) -> None:
        self._wanted = wanted

    def devices(self) -> list[VirtualDevice]:
        return CLIENT.devices(self._wanted.settle())

    local_devices = devices
    _get_all_devices = devices

    def device_count(self) -> int:
        return self._wanted.settle()

    local_device_count = device_count

    def process_index(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        return getattr(CLIENT, name)


class DeviceCount:
    """How many devices there are: as told, or as the program itself asks until it looks."""

    def __init__(self, told: int | None, default: int = 8) -> None:
        self._told = told
        self._default = default
        self._settled: int | None = told

    @property
    def key(self) -> object:
        """What tells this mode's compiled calls from others: equal for equal machines."""
        return self if self._told is None else ("simulated", self._told)

    @property
    def is_settled(self) -> bool:
        return self._settled is not None and self._told is None

    def unsettle(self) -> None:
        """Let the program choose again, as after `clear_backends`."""
        self._settled = self._told

    def settle(self) -> int:
        """Return the number of devices; from now on it does not change."""
        if self._settled is None:
            self._settled = _asked_by_config() or count_in_environment() or self._default
        return self._settled


def _asked_by_config() -> int | None:
    count = jax.config.jax_num_cpu_devices
    return int(count) if count and count > 0 else None


def start_real() -> None:
    """Start the real backend, if it is not running, with one device whatever is asked for.

    Whoever asks gets virtual devices; XLA reads its flags once, so it must not see them.
    """
    with hidden_count(), use_one_cpu_device():
        seams.real_backend()
