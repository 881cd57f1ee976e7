"""Transformer block: attention and MLP run in parallel and share one psum, in a train step."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "model=4"
DIM, HEADS, HEAD_DIM, HIDDEN = 8, 24, 2, 48
SPECS = {
    "norm": P(),
    "wq": P(None, "model", None),
    "wk": P(None, "model", None),
    "wv": P(None, "model", None),
    "wo": P("model", None, None),
    "w_up": P(None, "model"),
    "b_up": P("model"),
    "w_down": P("model", None),
    "bias": P(),
}
tx = optax.sgd(0.05)


def rms_norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def attention(params, x):
    q, k, v = (jnp.einsum("btd,dhk->bthk", x, params[name]) for name in ("wq", "wk", "wv"))
    scores = jnp.einsum("bqhk,bthk->bhqt", q, k) / HEAD_DIM**0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    mixed = jnp.einsum("bhqt,bthk->bqhk", jax.nn.softmax(scores), v)
    return jnp.einsum("bqhk,hkd->bqd", mixed, params["wo"])


def mlp(params, x):
    return jax.nn.gelu(x @ params["w_up"] + params["b_up"]) @ params["w_down"]


def block(params, x):
    h = rms_norm(x, params["norm"])
    a = attention(params, h)
    d = mlp(params, h)
    return x + lax.psum(a + d, "model") + params["bias"]


def step(params, opt_state, x, y):
    forward = jax.shard_map(block, in_specs=(SPECS, P()), out_specs=P())

    def loss_fn(params):
        return jnp.mean((forward(params, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def reference(params, opt_state, x, y):
    def loss_fn(params):
        h = rms_norm(x, params["norm"])
        out = x + attention(params, h) + mlp(params, h) + params["bias"]
        return jnp.mean((out - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(55)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 3, jnp.float32)

    params = {
        "norm": 1 + normal(DIM),
        "wq": normal(DIM, HEADS, HEAD_DIM),
        "wk": normal(DIM, HEADS, HEAD_DIM),
        "wv": normal(DIM, HEADS, HEAD_DIM),
        "wo": normal(HEADS, HEAD_DIM, DIM),
        "w_up": normal(DIM, HIDDEN),
        "b_up": normal(HIDDEN),
        "w_down": normal(HIDDEN, DIM),
        "bias": normal(DIM),
    }
    return params, tx.init(params), 3 * normal(3, 7, DIM), 3 * normal(3, 7, DIM)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="bias_inside_the_psum",
        old='    return x + lax.psum(a + d, "model") + params["bias"]\n',
        new='    return x + lax.psum(a + d + params["bias"], "model")\n',
        causes=("bias_n_times",),
    ),
    Bug(
        name="bias_added_to_the_mlp_before_the_psum",
        old='    d = mlp(params, h)\n    return x + lax.psum(a + d, "model") + params["bias"]\n',
        new="    d = mlp(params, h)\n"
        '    return x + lax.psum(a, "model") + lax.psum(d + params["bias"], "model")\n',
        causes=("bias_n_times",),
    ),
    Bug(
        name="residual_inside_the_psum",
        old='    return x + lax.psum(a + d, "model") + params["bias"]\n',
        new='    return lax.psum(x + a + d, "model") + params["bias"]\n',
        causes=("bias_n_times",),
    ),
    Bug(
        name="pmean_in_place_of_psum",
        old='lax.psum(a + d, "model")',
        new='lax.pmean(a + d, "model")',
        causes=("divided_by_n",),
    ),
    Bug(
        name="attention_averaged_and_mlp_summed",
        old='lax.psum(a + d, "model")',
        new='lax.pmean(a, "model") + lax.psum(d, "model")',
        causes=("divided_by_n",),
    ),
)
