"""Data parallel: an MLP classifier with AdamW, clipped gradients and metrics."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
tx = optax.chain(optax.clip_by_global_norm(0.05), optax.adamw(1e-2, weight_decay=0.1))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    step: Any
    params: Any
    opt_state: Any

    def apply_gradients(self, grads):
        updates, opt_state = tx.update(grads, self.opt_state, self.params)
        return TrainState(self.step + 1, optax.apply_updates(self.params, updates), opt_state)


def apply(params, x):
    x = jax.nn.gelu(x @ params["in"]["kernel"] + params["in"]["bias"])
    return x @ params["out"]["kernel"] + params["out"]["bias"]


def loss_fn(params, batch):
    logits = apply(params, batch["x"])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return losses.mean(), (logits.argmax(-1) == batch["y"]).mean()


def train_step(state, batch):
    (loss, accuracy), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch)
    grads = lax.pmean(grads, "data")
    metrics = {
        "loss": lax.pmean(loss, "data"),
        "accuracy": lax.pmean(accuracy, "data"),
        "grad_norm": optax.global_norm(grads),
    }
    return state.apply_gradients(grads), metrics


def step(state, batch):
    sharded = jax.shard_map(
        train_step, in_specs=(P(), P("data")), out_specs=(P(), P()), check_vma=False
    )
    return jax.jit(sharded, donate_argnums=0)(state, batch)


def reference(state, batch):
    (loss, accuracy), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch)
    metrics = {"loss": loss, "accuracy": accuracy, "grad_norm": optax.global_norm(grads)}
    return state.apply_gradients(grads), metrics


def example_args():
    rng = np.random.default_rng(0)

    def dense(n_in, n_out):
        kernel = rng.normal(size=(n_in, n_out)).astype("float32") / np.sqrt(n_in)
        return {"kernel": jnp.asarray(kernel), "bias": jnp.asarray(0.1 * kernel[0])}

    params = {"in": dense(8, 16), "out": dense(16, 5)}
    state = TrainState(jnp.asarray(3), params, tx.init(params))
    batch = {
        "x": jnp.asarray(rng.normal(size=(48, 8)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, 5, 48)),
    }
    return state, batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="gradients_not_averaged",
        old='    grads = lax.pmean(grads, "data")\n',
        new="",
        code="hazard.replicas_differ",
        causes=("missing_pmean",),
    ),
    Bug(
        name="gradients_summed",
        old='grads = lax.pmean(grads, "data")',
        new='grads = lax.psum(grads, "data")',
        causes=("gradient_scaled_by_n", "factor_of_n"),
    ),
    Bug(
        name="loss_metric_summed",
        old='"loss": lax.pmean(loss, "data")',
        new='"loss": lax.psum(loss, "data")',
        causes=("factor_of_n",),
    ),
    Bug(
        name="clipped_before_averaging",
        old='    grads = lax.pmean(grads, "data")\n',
        new="    norm = optax.global_norm(grads)\n"
        "    grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, 0.05 / norm), grads)\n"
        '    grads = lax.pmean(grads, "data")\n',
    ),
    Bug(
        name="accuracy_of_the_first_device",
        old='"accuracy": lax.pmean(accuracy, "data")',
        new='"accuracy": accuracy',
        code="hazard.replicas_differ",
        causes=("missing_pmean",),
    ),
)
