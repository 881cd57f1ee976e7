"""Warms up a fork server: exports a program once, so that forked processes start with JAX loaded.

What JAX loads and caches on the way (MLIR dialects, lowering rules, serialisation) is then there in
every forked process. No backend is started, because its threads do not survive a fork.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
from jax._src import xla_bridge  # plugin discovery, get_backend
from jax._src.interpreters import mlir  # make_ir_context
from jax._src.lax import linalg as linalg  # loads SciPy's LAPACK, which exported programs need
from jax.sharding import Mesh


class _Client:
    """Everything that lowering reads from a backend."""

    platform = "cpu"
    serialize_with_sdy = True

    def process_index(self) -> int:
        return 0


class _Device:
    """A device that can be lowered for, and nothing else."""

    platform = device_kind = "cpu"
    process_index = 0
    client = _Client()

    def __init__(self, id: int) -> None:
        self.id = id

    def __repr__(self) -> str:
        return f"warm-up device {self.id}"


def warmup_mesh(n_devices: int, *names: str) -> Mesh:
    """Return a mesh of devices that can be lowered for, and nothing else."""
    devices = np.array([_Device(id) for id in range(n_devices)], dtype=object)
    return Mesh(devices.reshape((n_devices,) + (1,) * (len(names) - 1)), names)


def export_once(program: Callable[..., Any], shapes: Sequence[Any]) -> jax.export.Exported:
    """Export a program, serialise it, and return what is deserialised."""
    with _without_backend():
        exported = jax.export.export(jax.jit(program), platforms=("cpu",))(*shapes)
        return jax.export.deserialize(exported.serialize())


def find_plugins() -> None:
    """Search the installed packages for backend plugins here, once, not in every process."""
    xla_bridge._discover_and_register_pjrt_plugins()


def share_context() -> None:
    """Use one MLIR context for the whole process; JAX 0.12 does so by itself."""
    # JAX 0.10 loads all dialects into a new context for each lowering.
    if not hasattr(mlir, "_thread_local_context"):
        mlir.make_ir_context = functools.cache(mlir.make_ir_context)
        mlir.make_ir_context()


def has_backend() -> bool:
    """Return whether a backend was started, and its threads with it."""
    return bool(xla_bridge._backends)


@contextlib.contextmanager
def _without_backend() -> Iterator[None]:
    """Within this block JAX gets a stub in place of a backend."""
    original = xla_bridge.get_backend
    xla_bridge.get_backend = lambda platform=None: _Client()
    try:
        yield
    finally:
        xla_bridge.get_backend = original
