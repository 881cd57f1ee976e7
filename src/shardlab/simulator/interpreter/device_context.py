"""The mesh coordinate of the device for which a host callback is running, and where it is shown."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping

_coordinate: contextvars.ContextVar[Mapping[str, int] | None] = contextvars.ContextVar(
    "coordinate", default=None
)
_has_labels: contextvars.ContextVar[bool] = contextvars.ContextVar("has_labels", default=True)


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
