"""The same matmul as a ring: the rows of the right matrix move to the next device in each step.

N devices take N loop iterations, each a product of 1024/N columns and a ppermute: the pattern of
ring attention and of collective matmuls, and the most expensive one on forced host devices.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.programs.all_gather_matmul import SIZE, make_matrices, multiply
from benchmarks.programs.program import Program


def make_program(n_devices: int, size: int = SIZE) -> Program:
    return Program(
        mesh={"x": n_devices},
        body=_per_device_matmul,
        in_specs=(P("x"), P("x")),
        out_specs=P("x"),
        unsharded=multiply,
        inputs=lambda: make_matrices(size),
    )


def _per_device_matmul(a: Any, b: Any) -> Any:
    n = lax.axis_size("x")
    device = lax.axis_index("x")
    to_next = [(i, (i + 1) % n) for i in range(n)]
    width = b.shape[0]

    def ring_step(i: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        total, rows = carry
        owner = (device - i) % n
        columns = lax.dynamic_slice_in_dim(a, owner * width, width, axis=1)
        return total + columns @ rows, lax.ppermute(rows, "x", to_next)

    # A loop carry keeps its type: zeros are unvarying, the sum that replaces them varies over x.
    zeros = lax.pcast(jnp.zeros((a.shape[0], b.shape[1]), a.dtype), "x", to="varying")
    total, _ = lax.fori_loop(0, n, ring_step, (zeros, b))
    return total
