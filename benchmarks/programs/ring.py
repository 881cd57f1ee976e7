"""The same matmul as a ring: the rows of the right matrix travel, one neighbour at a time.

N devices take N steps of a loop, each a product of 1024/N columns and a ppermute: the communication
pattern of ring attention and of collective matmuls, and the dearest thing to do on host devices.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.programs.gather import SIZE, matmul, matrices
from benchmarks.programs.program import Program


def program(n_devices: int, size: int = SIZE) -> Program:
    return Program(
        mesh={"x": n_devices},
        body=_on_each_device,
        in_specs=(P("x"), P("x")),
        out_specs=P("x"),
        unsharded=matmul,
        inputs=lambda: matrices(size),
    )


def _on_each_device(a: Any, b: Any) -> Any:
    n = lax.axis_size("x")
    me = lax.axis_index("x")
    to_the_right = [(i, (i + 1) % n) for i in range(n)]
    width = b.shape[0]

    def step(i: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        total, rows = carry
        owner = (me - i) % n
        columns = lax.dynamic_slice_in_dim(a, owner * width, width, axis=1)
        return total + columns @ rows, lax.ppermute(rows, "x", to_the_right)

    zeros = lax.pcast(jnp.zeros((a.shape[0], b.shape[1]), a.dtype), "x", to="varying")
    total, _ = lax.fori_loop(0, n, step, (zeros, b))
    return total
