"""The backend that a simulated program finds: the real client, with as many devices as it wants."""

from __future__ import annotations

import os
import re
from typing import Any

import jax

from shardlab.engine.virtual import CLIENT, VirtualDevice

_FLAG = re.compile(r"--xla_force_host_platform_device_count=(\d+)")


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

    def settle(self) -> int:
        """Return the number of devices; from now on it does not change."""
        if self._settled is None:
            self._settled = _asked_by_config() or asked_by_flags() or self._default
        return self._settled


def _asked_by_config() -> int | None:
    count = jax.config.jax_num_cpu_devices
    return int(count) if count and count > 0 else None


def asked_by_flags() -> int | None:
    """Return the device count that XLA_FLAGS asks for, the last one if there are several."""
    found = _FLAG.findall(os.environ.get("XLA_FLAGS", ""))
    return int(found[-1]) if found else None


def flags_without_count(flags: str) -> str:
    return " ".join(_FLAG.sub("", flags).split())
