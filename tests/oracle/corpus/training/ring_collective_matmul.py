"""Collective matmul: an all-gather overlapped with its product, then a ring reduce-scatter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "model=4"
DIM, HIDDEN, LEARNING_RATE = 6, 24, 0.1


def gather_matmul(x, w):
    """Return all rows of x times the local columns of w; rows travel round the ring."""
    n, rank = lax.axis_size("model"), lax.axis_index("model")
    rows = x.shape[0]
    to_previous = [((i + 1) % n, i) for i in range(n)]
    out = jnp.zeros((n * rows, w.shape[1]), x.dtype)
    out = lax.pcast(out, "model", to="varying")
    for hop in range(n):
        owner = (rank + hop) % n
        out = lax.dynamic_update_slice_in_dim(out, x @ w, owner * rows, 0)
        x = lax.ppermute(x, "model", to_previous)
    return out


def matmul_scatter(h, w):
    """Return the local rows of h times w, summed over the ring."""
    n, rank = lax.axis_size("model"), lax.axis_index("model")
    rows = h.shape[0] // n
    to_next = [(i, (i + 1) % n) for i in range(n)]

    def product(block):
        return lax.dynamic_slice_in_dim(h, block * rows, rows, 0) @ w

    total = product((rank - 1) % n)
    for hop in range(1, n):
        total = lax.ppermute(total, "model", to_next)
        total = total + product((rank - 1 - hop) % n)
    return total


def mlp(params, x):
    h = jax.nn.relu(gather_matmul(x, params["up"]))
    return x + matmul_scatter(h, params["down"])


def step(params, x, y):
    specs = {"up": P(None, "model"), "down": P("model", None)}
    forward = jax.shard_map(mlp, in_specs=(specs, P("model")), out_specs=P("model"))

    def loss_fn(params):
        return jnp.mean((forward(params, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def reference(params, x, y):
    def loss_fn(params):
        return jnp.mean((x + jax.nn.relu(x @ params["up"]) @ params["down"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def example_args():
    rng = np.random.default_rng(62)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {"up": normal(DIM, HIDDEN), "down": normal(HIDDEN, DIM)}
    return params, 2 * normal(24, DIM), normal(24, DIM)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="gather_ring_in_the_other_direction",
        old="to_previous = [((i + 1) % n, i) for i in range(n)]",
        new="to_previous = [(i, (i + 1) % n) for i in range(n)]",
        causes=("reversed_ppermute",),
    ),
    Bug(
        name="rows_placed_by_hop",
        old="owner = (rank + hop) % n",
        new="owner = hop",
    ),
    Bug(
        name="partial_sums_not_passed_on",
        old="        total = total + product((rank - 1 - hop) % n)\n",
        new="        total = product((rank - 1 - hop) % n)\n",
    ),
    Bug(
        name="scatter_starts_at_the_own_block",
        old="total = product((rank - 1) % n)",
        new="total = product(rank)",
    ),
)
