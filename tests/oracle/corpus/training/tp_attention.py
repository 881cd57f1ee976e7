"""Tensor parallel: attention with heads over `model` and the batch over `data`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,model=4"
HEAD_SIZE = 4
tx = optax.adamw(1e-2)
SPECS = {"qkv": P(None, None, "model"), "out": P("model"), "scale": P()}


def attend(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / HEAD_SIZE**0.5
    scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def attention(params, x):
    x = x * params["scale"]
    qkv = jnp.einsum("btd,dce->cbte", x, params["qkv"])
    q, k, v = qkv.reshape(*qkv.shape[:-1], -1, HEAD_SIZE)
    mixed = attend(q, k, v)
    return mixed.reshape(*mixed.shape[:2], -1) @ params["out"]


def step(params, opt_state, batch):
    def train_step(params, opt_state, batch):
        def loss_fn(params):
            out = batch["x"] + lax.psum(attention(params, batch["x"]), "model")
            return lax.pmean(jnp.mean((out - batch["y"]) ** 2), "data")

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    adam_specs = (optax.ScaleByAdamState(P(), SPECS, SPECS), *opt_state[1:])
    return jax.shard_map(
        train_step,
        in_specs=(SPECS, adam_specs, P("data")),
        out_specs=(SPECS, adam_specs, P()),
    )(params, opt_state, batch)


def reference(params, opt_state, batch):
    def loss_fn(params):
        out = batch["x"] + attention(params, batch["x"])
        return jnp.mean((out - batch["y"]) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(4)
    params = {
        "qkv": jnp.asarray(rng.normal(size=(6, 3, 24 * HEAD_SIZE)) / 3, jnp.float32),
        "out": jnp.asarray(rng.normal(size=(24 * HEAD_SIZE, 6)) / 9, jnp.float32),
        "scale": jnp.asarray(rng.normal(size=6) + 1, jnp.float32),
    }
    batch = {
        "x": jnp.asarray(rng.normal(size=(12, 5, 6)), jnp.float32),
        "y": jnp.asarray(rng.normal(size=(12, 5, 6)), jnp.float32),
    }
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="fused_qkv_split_after_sharding",
        old='    qkv = jnp.einsum("btd,dce->cbte", x, params["qkv"])\n'
        "    q, k, v = qkv.reshape(*qkv.shape[:-1], -1, HEAD_SIZE)\n",
        new='    qkv = jnp.einsum("btd,dce->btce", x, params["qkv"])\n'
        "    qkv = qkv.reshape(*qkv.shape[:2], -1, 3, HEAD_SIZE)\n"
        "    q, k, v = jnp.moveaxis(qkv, 3, 0)\n",
    ),
    Bug(
        name="loss_averaged_over_both_axes_of_a_sum",
        old='lax.psum(attention(params, batch["x"]), "model")',
        new='lax.pmean(attention(params, batch["x"]), "model")',
        causes=("divided_by_n",),
    ),
    Bug(
        name="loss_not_averaged_over_data",
        old='lax.pmean(jnp.mean((out - batch["y"]) ** 2), "data")',
        new='lax.psum(jnp.mean((out - batch["y"]) ** 2), "data")',
        causes=("factor_of_n",),
    ),
    Bug(
        name="residual_inside_the_sum",
        old='out = batch["x"] + lax.psum(attention(params, batch["x"]), "model")',
        new='out = lax.psum(batch["x"] + attention(params, batch["x"]), "model")',
        causes=("bias_n_times",),
    ),
    Bug(
        name="softmax_scale_by_local_heads",
        old="k) / HEAD_SIZE**0.5",
        new="k) / (q.shape[2] * HEAD_SIZE) ** 0.5",
    ),
)
