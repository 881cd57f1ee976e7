"""Pipeline: one stage on each device, as many stages as devices; GPipe's schedule."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "stage=4"
tx = optax.sgd(0.1)


def stage_fn(params, x):
    return jnp.tanh(x @ params["kernel"] + params["bias"])


def pipeline(params, microbatches):
    # Each device has its stage only: the leading dimension is 1.
    params = jax.tree.map(lambda p: p[0], params)
    n_stages, stage = lax.axis_size("stage"), lax.axis_index("stage")
    n_micro = microbatches.shape[0]
    to_next = [(i, (i + 1) % n_stages) for i in range(n_stages)]
    state = jnp.zeros_like(microbatches[0])
    outputs = jnp.zeros_like(microbatches)
    for t in range(n_micro + n_stages - 1):
        state = jnp.where(stage == 0, microbatches[min(t, n_micro - 1)], state)
        state = stage_fn(params, state)
        if t >= n_stages - 1:
            outputs = outputs.at[t - (n_stages - 1)].set(state)
        state = lax.ppermute(state, "stage", to_next)
    outputs = jnp.where(stage == n_stages - 1, outputs, 0.0)
    return lax.psum(outputs, "stage")


def step(params, opt_state, x, y):
    @jax.shard_map(in_specs=(P("stage"), P()), out_specs=P())
    def forward(params, x):
        return pipeline(params, x)

    def loss_fn(params):
        return jnp.mean((forward(params, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss


def reference(params, opt_state, x, y):
    def loss_fn(params):
        out = lax.scan(lambda x, p: (stage_fn(p, x), None), x, params)[0]
        return jnp.mean((out - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss


def example_args():
    rng = np.random.default_rng(8)
    params = {
        "kernel": jnp.asarray(rng.normal(size=(4, 6, 6)) / 2, jnp.float32),
        "bias": jnp.asarray(rng.normal(size=(4, 6)), jnp.float32),
    }
    x = jnp.asarray(rng.normal(size=(5, 3, 6)), jnp.float32)
    y = jnp.asarray(rng.normal(size=(5, 3, 6)), jnp.float32)
    return params, tx.init(params), x, y


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="outputs_one_tick_late",
        old="outputs = outputs.at[t - (n_stages - 1)].set(state)",
        new="outputs = outputs.at[t - n_stages].set(state)",
        needs_reference=True,
    ),
    Bug(
        name="sent_to_the_previous_stage",
        old="to_next = [(i, (i + 1) % n_stages) for i in range(n_stages)]",
        new="to_next = [((i + 1) % n_stages, i) for i in range(n_stages)]",
        needs_reference=True,
        causes=("reversed_ppermute",),
    ),
    Bug(
        name="outputs_of_every_stage_summed",
        old="    outputs = jnp.where(stage == n_stages - 1, outputs, 0.0)\n",
        new="",
        needs_reference=True,
    ),
)
