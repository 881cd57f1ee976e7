"""A matmul of two matrices sharded by rows: gather the right one, multiply.

1024^3 takes about 10 ms on 2 cores, and lets every device of 1024 hold one row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.programs.program import Program

SIZE = 1024


def program(n_devices: int, size: int = SIZE) -> Program:
    return Program(
        mesh={"x": n_devices},
        body=_on_each_device,
        in_specs=(P("x"), P("x")),
        out_specs=P("x"),
        unsharded=matmul,
        inputs=lambda: matrices(size),
    )


def matmul(a: Any, b: Any) -> Any:
    return a @ b


def matrices(size: int) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    return (
        draw.standard_normal((size, size), np.float32),
        draw.standard_normal((size, size), np.float32),
    )


def _on_each_device(a: Any, b: Any) -> Any:
    return a @ lax.all_gather(b, "x", tiled=True)
