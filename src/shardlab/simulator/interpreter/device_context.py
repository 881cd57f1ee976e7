"""On which device are we? Known to host callbacks while they are called for one device."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Mapping

_coordinate: contextvars.ContextVar[Mapping[str, int] | None] = contextvars.ContextVar(
    "coordinate", default=None
)


@contextlib.contextmanager
def on_device(coordinate: Mapping[str, int]) -> Iterator[None]:
    """Say that what runs now runs for the device at `coordinate`."""
    token = _coordinate.set(coordinate)
    try:
        yield
    finally:
        _coordinate.reset(token)


def coordinate() -> Mapping[str, int]:
    """Return the coordinate of the device that calls, empty outside of a simulated body."""
    return _coordinate.get() or {}


def label() -> str:
    """Return the coordinate as text, such as `data=0 model=3`."""
    return " ".join(f"{name}={index}" for name, index in coordinate().items())
