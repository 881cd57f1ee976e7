"""The mesh coordinate of the device for which a host callback is running."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping

_coordinate: contextvars.ContextVar[Mapping[str, int] | None] = contextvars.ContextVar(
    "coordinate", default=None
)


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
