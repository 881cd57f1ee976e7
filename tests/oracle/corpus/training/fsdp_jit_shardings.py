"""FSDP by the compiler: jit with sharded states and constraints on activations, no shard_map."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "fsdp=4"
DIM, HIDDEN, LAYERS = 16, 32, 3
ROWS, LENGTH = 8, 6
SPECS = {
    "up": P(None, "fsdp", None),
    "down": P(None, None, "fsdp"),
    "norm": P(),
    "head": P("fsdp", None),
}


def decay_mask(params):
    return {name: name != "norm" for name in params}


tx = optax.adamw(0.01, eps=1e-3, weight_decay=0.2, mask=decay_mask)


def shard(x, spec):
    return lax.with_sharding_constraint(x, spec)


def forward(params, x, shard):
    def layer(x, p):
        h = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * p["norm"]
        h = shard(jax.nn.silu(h @ p["up"]), P("fsdp", None, None))
        return shard(x + h @ p["down"], P("fsdp", None, None)), None

    layers = {name: params[name] for name in ("up", "down", "norm")}
    x, _ = lax.scan(jax.checkpoint(layer), x, layers)
    return x @ params["head"]


def loss_fn(params, batch, shard):
    logits = forward(params, batch["x"], shard).astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
    return (losses * batch["mask"]).sum() / batch["mask"].sum()


def train_step(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch, shard)
    updates, opt_state = tx.update(grads, opt_state, params)
    params = optax.apply_updates(params, updates)
    return jax.tree.map(shard, params, SPECS), opt_state, loss


step = jax.jit(train_step, in_shardings=(SPECS, None, P("fsdp")), donate_argnums=(0, 1))


def reference(params, opt_state, batch):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch, lambda x, spec: x)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(36)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 3, jnp.float32)

    params = {
        "up": normal(LAYERS, DIM, HIDDEN),
        "down": normal(LAYERS, HIDDEN, DIM),
        "norm": 1 + normal(LAYERS, DIM),
        "head": normal(DIM, 10),
    }
    batch = {
        "x": normal(ROWS, LENGTH, DIM),
        "labels": jnp.asarray(rng.integers(0, 10, (ROWS, LENGTH))),
        "mask": jnp.asarray(rng.random((ROWS, LENGTH)) < 0.7, jnp.float32),
    }
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="activations_replicated",
        old='        h = shard(jax.nn.silu(h @ p["up"]), P("fsdp", None, None))\n',
        new='        h = shard(jax.nn.silu(h @ p["up"]), P())\n',
        # Reported from 64 MiB of copies on, so at a size at which it matters; it is not run.
        also=(
            ("LAYERS = 16, 32, 3\n", "LAYERS = 16, 1024, 3\n"),
            ("ROWS, LENGTH = 8, 6\n", "ROWS, LENGTH = 64, 128\n"),
        ),
        code="waste.replicated",
    ),
    Bug(
        name="gradients_divided_by_the_device_count",
        old="    updates, opt_state = tx.update(grads, opt_state, params)\n"
        "    params = optax.apply_updates(params, updates)\n",
        new="    grads = jax.tree.map(lambda g: g / jax.device_count(), grads)\n"
        "    updates, opt_state = tx.update(grads, opt_state, params)\n"
        "    params = optax.apply_updates(params, updates)\n",
        causes=("gradient_scaled_by_n", "divided_by_n"),
    ),
)
