"""Circular pipeline: layers are dealt to stages in turn; microbatches go round several times."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "stage=4"
LAYERS, DIM, MICROBATCH, LEARNING_RATE = 24, 5, 2, 0.1
N_MICROBATCHES = 8  # at least the number of stages, or a stage would be needed twice in a tick


def layer_fn(layer, x):
    return x + 0.3 * jnp.tanh(x @ layer["w"] + layer["b"])


def pipeline(layers, inputs):
    """Apply layer r * n_stages + s on stage s in round r."""
    n_stages, stage = lax.axis_size("stage"), lax.axis_index("stage")
    n_rounds = layers["b"].shape[0]
    forward = [(i, (i + 1) % n_stages) for i in range(n_stages)]

    def tick(carry, t):
        state, waiting, outputs = carry
        age = t - stage  # ticks since the first microbatch was here
        round_index = jnp.clip(age // N_MICROBATCHES, 0, n_rounds - 1)
        number = age % N_MICROBATCHES
        fed = jnp.where(age < N_MICROBATCHES, inputs[number], waiting[number])
        state = jnp.where(stage == 0, fed, state)
        layer = jax.tree.map(lambda p: p[round_index], layers)
        state = layer_fn(layer, state)
        is_done = (stage == n_stages - 1) & (age >= (n_rounds - 1) * N_MICROBATCHES)
        outputs = jnp.where(is_done, outputs.at[number].set(state), outputs)
        state = lax.ppermute(state, "stage", forward)
        # What comes back from the last stage waits for its next round.
        arriving = (t - (n_stages - 1)) % N_MICROBATCHES
        waiting = waiting.at[arriving].set(state)
        return (state, waiting, outputs), None

    zeros = jnp.zeros_like(inputs)
    ticks = jnp.arange(n_rounds * N_MICROBATCHES + n_stages - 1)
    carry = (zeros[0], zeros, zeros)
    carry = jax.tree.map(lambda a: lax.pcast(a, "stage", to="varying"), carry)
    (_, _, outputs), _ = lax.scan(tick, carry, ticks)
    return lax.psum(outputs, "stage")


def dealt(layers, n_stages):
    """Return the layers in the order in which P("stage") gives each stage every n-th one."""
    return jax.tree.map(
        lambda p: p.reshape(-1, n_stages, *p.shape[1:]).swapaxes(0, 1).reshape(p.shape), layers
    )


def step(layers, inputs, targets):
    n_stages = jax.sharding.get_abstract_mesh().shape["stage"]
    run = jax.shard_map(pipeline, in_specs=(P("stage"), P()), out_specs=P())

    def loss_fn(layers):
        return jnp.mean((run(dealt(layers, n_stages), inputs) - targets) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(layers)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, layers, grads), loss


def reference(layers, inputs, targets):
    def loss_fn(layers):
        out = lax.scan(lambda x, p: (layer_fn(p, x), None), inputs, layers)[0]
        return jnp.mean((out - targets) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(layers)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, layers, grads), loss


def example_args():
    rng = np.random.default_rng(57)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    layers = {"w": 2 * normal(LAYERS, DIM, DIM), "b": normal(LAYERS, DIM)}
    shape = (N_MICROBATCHES, MICROBATCH, DIM)
    return layers, 2 * normal(*shape), normal(*shape)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="layers_in_blocks_and_not_dealt",
        old="run(dealt(layers, n_stages), inputs)",
        new="run(layers, inputs)",
    ),
    Bug(
        name="sent_backwards",
        old="forward = [(i, (i + 1) % n_stages) for i in range(n_stages)]",
        new="forward = [((i + 1) % n_stages, i) for i in range(n_stages)]",
        causes=("reversed_ppermute",),
    ),
    Bug(
        name="returning_microbatch_stored_one_place_late",
        old="arriving = (t - (n_stages - 1)) % N_MICROBATCHES",
        new="arriving = (t - n_stages) % N_MICROBATCHES",
        needs_reference=True,
    ),
    Bug(
        name="too_few_ticks",
        old="ticks = jnp.arange(n_rounds * N_MICROBATCHES + n_stages - 1)",
        new="ticks = jnp.arange(n_rounds * N_MICROBATCHES)",
    ),
)
