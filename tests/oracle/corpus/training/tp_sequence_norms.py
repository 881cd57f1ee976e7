"""Sequence parallel: norms and residuals on a shard of the sequence, features sharded for the norm.

The second norm is over features that are sharded over `model`, so its mean square needs a psum.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "model=4"
DIM, HIDDEN, LEARNING_RATE = 6, 48, 0.02
SPECS = {
    "pre": {"scale": P(), "shift": P()},
    "up": P(None, "model"),
    "inner": P("model"),
    "down": P("model", None),
}


def layer_norm(params, x):
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * params["scale"] + params["shift"]


def sharded_rms_norm(scale, h):
    """Normalize over the last dimension, which is sharded over `model`."""
    total = lax.psum(jnp.sum(h * h, -1, keepdims=True), "model")
    size = h.shape[-1] * lax.axis_size("model")
    return h * lax.rsqrt(total / size + 1e-5) * scale


def block(params, x):
    h = layer_norm(params["pre"], x)
    h = lax.all_gather(h, "model", axis=1, tiled=True)
    h = sharded_rms_norm(params["inner"], jax.nn.relu(h @ params["up"]))
    return x + lax.psum_scatter(h @ params["down"], "model", scatter_dimension=1, tiled=True)


def train_step(params, x, y):
    def loss_fn(params):
        error = block(params, x) - y
        return lax.pmean(jnp.mean(error**2), "model")

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def step(params, x, y):
    tokens = P(None, "model")
    return jax.shard_map(train_step, in_specs=(SPECS, tokens, tokens), out_specs=(SPECS, P()))(
        params, x, y
    )


def reference(params, x, y):
    def loss_fn(params):
        h = jax.nn.relu(layer_norm(params["pre"], x) @ params["up"])
        h = h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5) * params["inner"]
        return jnp.mean((x + h @ params["down"] - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def example_args():
    rng = np.random.default_rng(56)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {
        "pre": {"scale": 1 + normal(DIM), "shift": normal(DIM)},
        "up": normal(DIM, HIDDEN),
        "inner": 1 + normal(HIDDEN),
        "down": normal(HIDDEN, DIM),
    }
    return params, 2 * normal(2, 24, DIM), 2 * normal(2, 24, DIM)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="mean_square_of_the_local_features",
        old='    total = lax.psum(jnp.sum(h * h, -1, keepdims=True), "model")\n'
        '    size = h.shape[-1] * lax.axis_size("model")\n'
        "    return h * lax.rsqrt(total / size + 1e-5) * scale\n",
        new="    return h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-5) * scale\n",
        causes=("local_reduction",),
    ),
    Bug(
        name="sum_of_squares_divided_by_the_local_size",
        old='    size = h.shape[-1] * lax.axis_size("model")\n',
        new="    size = h.shape[-1]\n",
        causes=("factor_of_n",),
    ),
    Bug(
        name="output_averaged_by_scaling_the_scatter",
        old='lax.psum_scatter(h @ params["down"], "model", scatter_dimension=1, tiled=True)',
        new='lax.psum_scatter(h @ params["down"], "model", scatter_dimension=1, tiled=True)'
        ' / lax.axis_size("model")',
        causes=("divided_by_n",),
    ),
    Bug(
        name="every_device_keeps_the_first_rows",
        old="    return x + lax.psum_scatter("
        'h @ params["down"], "model", scatter_dimension=1, tiled=True)\n',
        new='    out = lax.psum(h @ params["down"], "model")\n'
        "    return x + lax.dynamic_slice_in_dim(out, 0, x.shape[1], 1)\n",
        causes=("only_shard_0",),
    ),
)
