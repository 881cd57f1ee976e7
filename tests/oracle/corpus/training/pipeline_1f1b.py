"""Pipeline: one forward and one backward a tick, with stashed inputs and gradients by jax.vjp."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "stage=4"
LAYERS, DIM, N_MICROBATCHES, MICROBATCH = 24, 4, 6, 2
tx = optax.chain(optax.clip_by_global_norm(10.0), optax.sgd(0.1, momentum=0.9))


def run_layers(layers, x):
    def layer(x, p):
        return x + 0.3 * jnp.tanh(x @ p["w"] + p["b"]), None

    return lax.scan(layer, x, layers)[0]


def microbatch_loss(y, target):
    return jnp.mean((y - target) ** 2) / N_MICROBATCHES


def schedule(layers, inputs, targets):
    """Run the schedule: stage s forwards microbatch t - s and backs up t - (2 (S - 1) - s)."""
    n_stages, stage = lax.axis_size("stage"), lax.axis_index("stage")
    is_first, is_last = stage == 0, stage == n_stages - 1
    n_slots = 2 * n_stages - 1  # inputs that the first stage must keep
    down = [(i, i + 1) for i in range(n_stages - 1)]
    up = [(i + 1, i) for i in range(n_stages - 1)]

    def pick(array, i):
        return lax.dynamic_index_in_dim(array, jnp.clip(i, 0, N_MICROBATCHES - 1), 0, False)

    def tick(carry, t):
        received, received_grad, stash, grads, loss = carry
        forward = t - stage
        backward = t - (2 * (n_stages - 1) - stage)
        runs_forward = (forward >= 0) & (forward < N_MICROBATCHES)
        runs_backward = (backward >= 0) & (backward < N_MICROBATCHES)

        x = jnp.where(is_first, pick(inputs, forward), received)
        stash = lax.dynamic_update_index_in_dim(stash, x, forward % n_slots, 0)
        y = run_layers(layers, x)
        new_loss, y_grad = jax.value_and_grad(microbatch_loss)(y, pick(targets, forward))
        loss = loss + jnp.where(is_last & runs_forward, new_loss, 0.0)

        saved = lax.dynamic_index_in_dim(stash, backward % n_slots, 0, False)
        _, pull_back = jax.vjp(run_layers, layers, saved)
        new_grads, x_grad = pull_back(jnp.where(is_last, y_grad, received_grad))
        grads = jax.tree.map(lambda g, new: g + jnp.where(runs_backward, new, 0), grads, new_grads)

        received = lax.ppermute(y, "stage", down)
        received_grad = lax.ppermute(x_grad, "stage", up)
        return (received, received_grad, stash, grads, loss), None

    zero = jnp.zeros_like(inputs[0])
    stash = jnp.zeros((n_slots, *zero.shape), zero.dtype)
    init = (zero, zero, stash, jax.tree.map(jnp.zeros_like, layers), jnp.zeros(()))
    ticks = jnp.arange(N_MICROBATCHES + 2 * (n_stages - 1))
    (_, _, _, grads, loss), _ = lax.scan(tick, init, ticks)
    return lax.psum(loss, "stage"), grads


def step(layers, opt_state, inputs, targets):
    loss, grads = jax.shard_map(
        schedule, in_specs=(P("stage"), P(), P()), out_specs=(P(), P("stage")), check_vma=False
    )(layers, inputs, targets)
    updates, opt_state = tx.update(grads, opt_state, layers)
    return optax.apply_updates(layers, updates), opt_state, loss


def reference(layers, opt_state, inputs, targets):
    def loss_fn(layers):
        return jax.vmap(lambda x, y: microbatch_loss(run_layers(layers, x), y))(
            inputs, targets
        ).sum()

    loss, grads = jax.value_and_grad(loss_fn)(layers)
    updates, opt_state = tx.update(grads, opt_state, layers)
    return optax.apply_updates(layers, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(37)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    layers = {"w": normal(LAYERS, DIM, DIM), "b": normal(LAYERS, DIM)}
    shape = (N_MICROBATCHES, MICROBATCH, DIM)
    return layers, tx.init(layers), normal(*shape), normal(*shape)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="stash_too_small",
        old="    n_slots = 2 * n_stages - 1  # inputs that the first stage must keep\n",
        new="    n_slots = n_stages\n",
    ),
    Bug(
        name="gradients_of_empty_ticks_counted",
        old="lambda g, new: g + jnp.where(runs_backward, new, 0)",
        new="lambda g, new: g + new",
    ),
)
