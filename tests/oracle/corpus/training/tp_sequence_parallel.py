"""Tensor and sequence parallel: all-gather, reduce-scatter, gradients summed by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,model=4"
DIM, HIDDEN, LENGTH = 8, 32, 16
SPECS = {
    "scale": P(),
    "shift": P(),
    "up": P(None, "model"),
    "up_bias": P("model"),
    "down": P("model", None),
    "down_bias": P(),
}
tx = optax.adamw(0.01, eps=1e-3, weight_decay=0.1)


def layer_norm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + shift


def mlp(params, x):
    """Apply the layer to a shard of the sequence, which dimension 1 of `x` is."""
    h = layer_norm(x, params["scale"], params["shift"])
    h = lax.all_gather(h, "model", axis=1, tiled=True)
    h = jax.nn.gelu(h @ params["up"] + params["up_bias"])
    out = lax.psum_scatter(h @ params["down"], "model", scatter_dimension=1, tiled=True)
    return x + out + params["down_bias"]


def local_loss(params, x, y):
    return ((mlp(params, x) - y) ** 2).sum()


def update(params, opt_state, x, y):
    total = lax.psum(y.size, ("data", "model"))
    loss, grads = jax.value_and_grad(lambda p: local_loss(p, x, y) / total)(params)
    # Replicated parameters see a part of the sequence on each device; sharded ones see all of it.
    for name in ("scale", "shift", "down_bias"):
        grads[name] = lax.psum(grads[name], "model")
    grads = lax.psum(grads, "data")
    updates, opt_state = tx.update(grads, opt_state, params)
    loss = lax.psum(loss, ("data", "model"))
    return optax.apply_updates(params, updates), opt_state, loss


def step(params, opt_state, x, y):
    adam, *rest = opt_state
    opt_specs = (adam._replace(count=P(), mu=SPECS, nu=SPECS), *rest)
    tokens = P("data", "model")
    return jax.shard_map(
        update,
        in_specs=(SPECS, opt_specs, tokens, tokens),
        out_specs=(SPECS, opt_specs, P()),
        check_vma=False,
    )(params, opt_state, x, y)


def reference(params, opt_state, x, y):
    def loss_fn(params):
        h = layer_norm(x, params["scale"], params["shift"])
        h = jax.nn.gelu(h @ params["up"] + params["up_bias"])
        out = x + h @ params["down"] + params["down_bias"]
        return ((out - y) ** 2).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(34)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {
        "scale": 1 + normal(DIM),
        "shift": normal(DIM),
        "up": normal(DIM, HIDDEN),
        "up_bias": normal(HIDDEN),
        "down": normal(HIDDEN, DIM),
        "down_bias": normal(DIM),
    }
    x, y = 2 * normal(8, LENGTH, DIM), 2 * normal(8, LENGTH, DIM)
    return params, tx.init(params), x, y


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="layer_norm_gradients_not_summed",
        old='    for name in ("scale", "shift", "down_bias"):\n',
        new='    for name in ("down_bias",):\n',
        code="hazard.replicas_differ",
        causes=("missing_psum",),
    ),
    Bug(
        name="bias_before_the_reduce_scatter",
        old="    out = lax.psum_scatter("
        'h @ params["down"], "model", scatter_dimension=1, tiled=True)\n'
        '    return x + out + params["down_bias"]\n',
        new='    out = h @ params["down"] + params["down_bias"]\n'
        '    return x + lax.psum_scatter(out, "model", scatter_dimension=1, tiled=True)\n',
        causes=("bias_n_times",),
    ),
)
