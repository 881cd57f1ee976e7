"""ZeRO stage 1: each device owns a slice of the flat parameters and of their momentum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
LEARNING_RATE, BETA, WEIGHT_DECAY = 0.05, 0.9, 0.01


def mlp(params, x):
    h = jnp.tanh(x @ params["w1"] + params["b1"])
    return params["scale"] * (h @ params["w2"] + params["b2"])


def loss_fn(params, x, y):
    return jnp.mean((mlp(params, x) - y) ** 2)


def train_step(params, momentum, x, y):
    """Update the own slice, then gather the slices of all devices."""
    n, index = lax.axis_size("data"), lax.axis_index("data")
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    flat_grads, _ = ravel_pytree(grads)
    flat_params, unravel = ravel_pytree(params)
    size = flat_params.size // n

    grad = lax.psum_scatter(flat_grads, "data", tiled=True) / n
    mine = lax.dynamic_slice_in_dim(flat_params, index * size, size)
    momentum = BETA * momentum + grad + WEIGHT_DECAY * mine
    mine = mine - LEARNING_RATE * momentum
    flat_params = lax.all_gather(mine, "data", tiled=True)
    return unravel(flat_params), momentum, lax.pmean(loss, "data")


def step(params, momentum, x, y):
    return jax.shard_map(
        train_step,
        in_specs=(P(), P("data"), P("data"), P("data")),
        out_specs=(P(), P("data"), P()),
        check_vma=False,
    )(params, momentum, x, y)


def reference(params, momentum, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    flat_params, unravel = ravel_pytree(params)
    momentum = BETA * momentum + ravel_pytree(grads)[0] + WEIGHT_DECAY * flat_params
    return unravel(flat_params - LEARNING_RATE * momentum), momentum, loss


def example_args():
    rng = np.random.default_rng(51)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    # 48 + 8 + 120 + 15 + 1 = 192 parameters, divisible by 3 and 8.
    params = {"w1": normal(6, 8), "b1": normal(8), "w2": normal(8, 15), "b2": normal(15)}
    params["scale"] = 1 + normal()
    return params, normal(192), 2 * normal(48, 6), normal(48, 15)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="every_device_updates_the_first_slice",
        old="lax.dynamic_slice_in_dim(flat_params, index * size, size)",
        new="lax.dynamic_slice_in_dim(flat_params, 0, size)",
        causes=("only_shard_0",),
    ),
    Bug(
        name="summed_slices_not_divided",
        old='lax.psum_scatter(flat_grads, "data", tiled=True) / n',
        new='lax.psum_scatter(flat_grads, "data", tiled=True)',
        causes=("gradient_scaled_by_n",),
    ),
    Bug(
        name="slices_of_the_local_gradient",
        old='lax.psum_scatter(flat_grads, "data", tiled=True) / n',
        new="lax.dynamic_slice_in_dim(flat_grads, index * size, size)",
    ),
)
