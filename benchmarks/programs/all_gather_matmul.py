"""A matmul of two matrices sharded by rows: all-gather the right one, then multiply.

1024^3 takes about 10 ms on 2 cores, and each of 1024 devices still has one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.programs.program import Program

SIZE = 1024


def make_program(n_devices: int, size: int = SIZE) -> Program:
    return Program(
        mesh={"x": n_devices},
        body=_per_device_matmul,
        in_specs=(P("x"), P("x")),
        out_specs=P("x"),
        unsharded=multiply,
        inputs=lambda: make_matrices(size),
    )


def multiply(a: Any, b: Any) -> Any:
    return a @ b


def make_matrices(size: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return (
        rng.standard_normal((size, size), np.float32),
        rng.standard_normal((size, size), np.float32),
    )


def _per_device_matmul(a: Any, b: Any) -> Any:
    return a @ lax.all_gather(b, "x", tiled=True)
