"""Data parallel: clipped AdamW with a weight decay mask, an EMA of the weights, and label masks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
EMA_DECAY = 0.9


def decay_mask(params):
    return jax.tree.map(lambda p: p.ndim > 1, params)


tx = optax.chain(
    optax.clip_by_global_norm(0.05),
    optax.scale_by_adam(b1=0.9, b2=0.95, eps=1e-3),
    optax.add_decayed_weights(0.1, mask=decay_mask),
    optax.scale_by_learning_rate(0.05),
)


def forward(params, x):
    h = x @ params["in"]["kernel"] + params["in"]["bias"]
    h = jax.nn.gelu(h)
    h = h * lax.rsqrt(jnp.mean(h**2, -1, keepdims=True) + 1e-6) * params["norm"]
    return h @ params["out"]["kernel"] + params["out"]["bias"]


def loss_fn(params, batch, n_labels):
    logits = forward(params, batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
    hits = (logits.argmax(-1) == batch["label"]) * batch["mask"]
    return (losses * batch["mask"]).sum() / n_labels, hits.sum() / n_labels


def train_step(state, batch):
    n_labels = lax.psum(batch["mask"].sum(), "data")
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, accuracy), grads = grad_fn(state["params"], batch, n_labels)
    grads = lax.psum(grads, "data")
    grad_norm = optax.global_norm(grads)
    updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    ema = optax.incremental_update(params, state["ema"], 1 - EMA_DECAY)
    metrics = {
        "loss": lax.psum(loss, "data"),
        "accuracy": lax.psum(accuracy, "data"),
        "grad_norm": grad_norm,
    }
    return {"params": params, "opt_state": opt_state, "ema": ema}, metrics


def step(state, batch):
    return jax.shard_map(
        train_step, in_specs=(P(), P("data")), out_specs=(P(), P()), check_vma=False
    )(state, batch)


def reference(state, batch):
    n_labels = batch["mask"].sum()
    grad_fn = jax.value_and_grad(loss_fn, has_aux=True)
    (loss, accuracy), grads = grad_fn(state["params"], batch, n_labels)
    updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    ema = optax.incremental_update(params, state["ema"], 1 - EMA_DECAY)
    metrics = {"loss": loss, "accuracy": accuracy, "grad_norm": optax.global_norm(grads)}
    return {"params": params, "opt_state": opt_state, "ema": ema}, metrics


def example_args():
    rng = np.random.default_rng(31)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 3, jnp.float32)

    params = {
        "in": {"kernel": normal(6, 16), "bias": normal(16)},
        "norm": 1 + normal(16),
        "out": {"kernel": normal(16, 5), "bias": normal(5)},
    }
    batch = {
        "x": 3 * normal(48, 6),
        "label": jnp.asarray(rng.integers(0, 5, 48)),
        "mask": jnp.asarray(rng.random(48) < np.linspace(0.3, 1, 48), jnp.float32),
    }
    state = {
        "params": params,
        "opt_state": tx.init(params),
        "ema": jax.tree.map(lambda p: p + 0.01, params),
    }
    return state, batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="gradients_summed_after_the_optimizer_clipped_them",
        old='    grads = lax.psum(grads, "data")\n    grad_norm = optax.global_norm(grads)\n',
        new='    grad_norm = optax.global_norm(lax.psum(grads, "data"))\n'
        "    scale = jnp.minimum(1.0, 0.05 / optax.global_norm(grads))\n"
        '    grads = lax.psum(jax.tree.map(lambda g: g * scale, grads), "data")\n',
    ),
    Bug(
        name="norm_of_local_gradients_averaged",
        old='    grads = lax.psum(grads, "data")\n    grad_norm = optax.global_norm(grads)\n',
        new='    grad_norm = lax.pmean(optax.global_norm(grads), "data")\n'
        '    grads = lax.psum(grads, "data")\n',
    ),
)
