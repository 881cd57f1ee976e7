"""Data parallel: a contrastive loss whose negatives are gathered from all devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
tx = optax.sgd(0.1, momentum=0.9)


def encode(w, x):
    z = jnp.tanh(x @ w)
    return z / jnp.linalg.norm(z, axis=-1, keepdims=True)


def local_losses(image, text, all_text, first):
    logits = 5.0 * image @ all_text.T
    labels = first + jnp.arange(image.shape[0])
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def step(params, opt_state, batch):
    def loss_fn(params, batch):
        image = encode(params["image"], batch["image"])
        text = encode(params["text"], batch["text"])
        all_text = lax.all_gather(text, "data", tiled=True)
        first = lax.axis_index("data") * image.shape[0]
        return lax.pmean(local_losses(image, text, all_text, first).mean(), "data")

    def train_step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), opt_state, loss

    return jax.shard_map(train_step, in_specs=(P(), P(), P("data")), out_specs=(P(), P(), P()))(
        params, opt_state, batch
    )


def reference(params, opt_state, batch):
    def loss_fn(params):
        image = encode(params["image"], batch["image"])
        text = encode(params["text"], batch["text"])
        return local_losses(image, text, text, 0).mean()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(21)
    params = {n: jnp.asarray(rng.normal(size=(6, 8)), jnp.float32) for n in ("image", "text")}
    batch = {n: jnp.asarray(rng.normal(size=(24, 6)), jnp.float32) for n in ("image", "text")}
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="labels_without_offset",
        old='first = lax.axis_index("data") * image.shape[0]',
        new="first = 0",
        causes=("only_shard_0",),
    ),
    Bug(
        name="negatives_of_one_device",
        old='        all_text = lax.all_gather(text, "data", tiled=True)\n'
        '        first = lax.axis_index("data") * image.shape[0]\n',
        new="        all_text, first = text, 0\n",
    ),
    Bug(
        name="loss_summed",
        old="return lax.pmean(local_losses(",
        new="return lax.psum(local_losses(",
        causes=("factor_of_n",),
    ),
)
