"""Mixture of experts, expert choice: each expert takes its best tokens of every sequence."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "expert=4"
N_EXPERTS, CAPACITY, DIM, HIDDEN, LENGTH, LEARNING_RATE = 24, 2, 4, 6, 8, 0.1
SPECS = {"router": P(), "w_in": P("expert"), "w_out": P("expert")}


def choose(params, x):
    """Return gates, and one-hot choices [sequence, expert, slot, token]."""
    scores = jax.nn.softmax(jnp.einsum("btd,de->bte", x, params["router"]))
    gate, token = lax.top_k(scores.swapaxes(1, 2), CAPACITY)
    return gate, jax.nn.one_hot(token, x.shape[1])


def experts(params, tokens):
    hidden = jax.nn.silu(jnp.einsum("ebcd,edh->ebch", tokens, params["w_in"]))
    return jnp.einsum("ebch,ehd->ebcd", hidden, params["w_out"])


def moe_layer(params, x):
    gate, choice = choose(params, x)
    tokens = jnp.einsum("bect,btd->ebcd", choice, x)
    tokens = lax.all_to_all(tokens, "expert", 0, 1, tiled=True)
    tokens = experts(params, tokens)
    tokens = lax.all_to_all(tokens, "expert", 1, 0, tiled=True)
    return x + jnp.einsum("bec,bect,ebcd->btd", gate, choice, tokens)


def step(params, x, y):
    batch = P("expert")
    layer = jax.shard_map(moe_layer, in_specs=(SPECS, batch), out_specs=batch)

    def loss_fn(params):
        return jnp.mean((layer(params, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def reference(params, x, y):
    def loss_fn(params):
        gate, choice = choose(params, x)
        tokens = experts(params, jnp.einsum("bect,btd->ebcd", choice, x))
        out = x + jnp.einsum("bec,bect,ebcd->btd", gate, choice, tokens)
        return jnp.mean((out - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, grads), loss


def example_args():
    rng = np.random.default_rng(59)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = {
        "router": normal(DIM, N_EXPERTS),
        "w_in": normal(N_EXPERTS, DIM, HIDDEN),
        "w_out": normal(N_EXPERTS, HIDDEN, DIM),
    }
    return params, normal(24, LENGTH, DIM), normal(24, LENGTH, DIM)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="results_not_sent_back",
        old="    tokens = experts(params, tokens)\n"
        '    tokens = lax.all_to_all(tokens, "expert", 1, 0, tiled=True)\n',
        new="    tokens = experts(params, tokens)\n"
        "    tokens = tokens.reshape(N_EXPERTS, x.shape[0], CAPACITY, DIM)\n",
    ),
    Bug(
        name="experts_dealt_in_another_order",
        old='    tokens = lax.all_to_all(tokens, "expert", 0, 1, tiled=True)\n',
        new="    n = lax.axis_size('expert')\n"
        "    tokens = tokens.reshape(n, -1, *tokens.shape[1:]).swapaxes(0, 1)"
        ".reshape(tokens.shape)\n"
        '    tokens = lax.all_to_all(tokens, "expert", 0, 1, tiled=True)\n',
    ),
)
