"""The mesh coordinate of the device for which a host callback is running, and where it is shown.

On several virtual hosts also: which host makes the call of which device.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

_coordinate: contextvars.ContextVar[Mapping[str, int] | None] = contextvars.ContextVar(
    "coordinate", default=None
)
_has_labels: contextvars.ContextVar[bool] = contextvars.ContextVar("has_labels", default=True)
_owners: contextvars.ContextVar[DeviceOwners | None] = contextvars.ContextVar(
    "owners", default=None
)


@dataclasses.dataclass(frozen=True)
class DeviceOwners:
    """The hosts of a program's devices: a callback runs on the host of its device."""

    hosts: tuple[int, ...]  # of each device, in the order of the program's devices
    this_host: int
    # Gives all hosts the results of all: takes the arrays of this host, returns those of each.
    share: Callable[[Sequence[Any]], Mapping[int, Sequence[Any]]]

    def host_at(self, coordinate: Mapping[str, int], sizes: Mapping[str, int]) -> int:
        """Return the host of the device at a coordinate; missing mesh axes count as 0."""
        position = 0
        for name, size in sizes.items():
            position = position * size + coordinate.get(name, 0)
        return self.hosts[position] if position < len(self.hosts) else self.hosts[0]


@contextlib.contextmanager
def use_owners(owners: DeviceOwners | None) -> Iterator[None]:
    """Within this block a program is traced whose devices belong to these hosts."""
    token = _owners.set(owners)
    try:
        yield
    finally:
        _owners.reset(token)


def device_owners() -> DeviceOwners | None:
    """Return the hosts of the devices of the program that is being traced, if there are several."""
    return _owners.get()


@contextlib.contextmanager
def run_as_device(coordinate: Mapping[str, int]) -> Iterator[None]:
    """Within this block, host code runs on behalf of the device at `coordinate`."""
    token = _coordinate.set(coordinate)
    try:
        yield
    finally:
        _coordinate.reset(token)


def current_coordinate() -> Mapping[str, int]:
    """Return the coordinate of the calling device; empty outside a simulated shard_map body."""
    return _coordinate.get() or {}


def coordinate_label() -> str:
    """Return the coordinate as text, such as `data=0 model=3`."""
    return " ".join(f"{name}={index}" for name, index in current_coordinate().items())


@contextlib.contextmanager
def without_labels() -> Iterator[None]:
    """Within this block, what `jax.debug.print` prints does not start with the coordinate.

    For a reader of standard output that asks for `current_coordinate` itself.
    """
    token = _has_labels.set(False)
    try:
        yield
    finally:
        _has_labels.reset(token)


def has_labels() -> bool:
    """Return whether lines of `jax.debug.print` start with the coordinate of their device."""
    return _has_labels.get()
