"""Exports a program for devices that do not exist, with no backend: a rehearsal in a fork server.

What JAX loads and remembers on the way (MLIR dialects, lowering rules, serialisation) is there for
every process that is forked afterwards. No backend is started, since its threads would be lost.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
from jax._src import xla_bridge
from jax._src.interpreters import mlir
from jax._src.lax import linalg as linalg  # loads SciPy's LAPACK, which exported programs ask for
from jax.sharding import Mesh


class _Client:
    """All that lowering asks a backend for."""

    platform = "cpu"
    serialize_with_sdy = True

    def process_index(self) -> int:
        return 0


class _Device:
    """A device in name."""

    platform = device_kind = "cpu"
    process_index = 0
    client = _Client()

    def __init__(self, id: int) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"rehearsal device {self.id}"


def warmup_mesh(n_devices: int, *names: str) -> Mesh:
    """Return a mesh of devices that can be lowered for, and nothing else."""
    devices = np.array([_Device(id) for id in range(n_devices)], dtype=object)
    return Mesh(devices.reshape((n_devices,) + (1,) * (len(names) - 1)), names)


def export_once(program: Callable[..., Any], shapes: Sequence[Any]) -> jax.export.Exported:
    """Return a program after its way through export, bytes and back."""
    with _no_backend():
        exported = jax.export.export(jax.jit(program), platforms=("cpu",))(*shapes)
        return jax.export.deserialize(exported.serialize())


def find_plugins() -> None:
    """Look for other backends among the installed packages once, and not in every process."""
    xla_bridge._discover_and_register_pjrt_plugins()


def share_context() -> None:
    """Let one MLIR context serve this process; JAX 0.12 does that by itself."""
    if not hasattr(mlir, "_thread_local_context"):
        mlir.make_ir_context = functools.cache(mlir.make_ir_context)
        mlir.make_ir_context()


def has_backend() -> bool:
    """Say whether a backend was started, and with it its threads."""
    return bool(xla_bridge._backends)


@contextlib.contextmanager
def _no_backend() -> Iterator[None]:
    original = xla_bridge.get_backend
    xla_bridge.get_backend = lambda platform=None: _Client()
    try:
        yield
    finally:
        xla_bridge.get_backend = original
