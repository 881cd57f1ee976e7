"""Mixture of experts: top-2 of experts over `expert`, gathered tokens, reduce-scatter back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "expert=4"
N_EXPERTS = 24
tx = optax.adam(1e-2)
SPECS = {"router": P(), "w": P("expert"), "norm": P()}


def route(params, x):
    probabilities = jax.nn.softmax(x @ params["router"])
    weights, indices = lax.top_k(probabilities, 2)
    weights = weights / weights.sum(-1, keepdims=True)
    return jnp.zeros_like(probabilities).at[jnp.arange(len(x))[:, None], indices].add(weights)


def apply_experts(w, x, weights):
    return jnp.einsum("te,ted->td", weights, jnp.tanh(jnp.einsum("td,edf->tef", x, w)))


def forward(params, x):
    x = x * params["norm"]
    tokens = lax.all_gather(x, "expert", tiled=True)
    weights = route(params, tokens)
    n_local = params["w"].shape[0]
    first = lax.axis_index("expert") * n_local
    mine = lax.dynamic_slice_in_dim(weights, first, n_local, 1)
    partial = apply_experts(params["w"], tokens, mine)
    return x + lax.psum_scatter(partial, "expert", tiled=True)


def step(params, opt_state, x, y):
    @jax.shard_map(in_specs=(SPECS, P("expert"), P("expert")), out_specs=(P(), P("expert")))
    def losses(params, x, y):
        out = forward(params, x)
        return lax.pmean(jnp.mean((out - y) ** 2), "expert"), out

    (loss, out), grads = jax.value_and_grad(losses, has_aux=True)(params, x, y)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss, out


def reference(params, opt_state, x, y):
    def loss_fn(params):
        scaled = x * params["norm"]
        out = scaled + apply_experts(params["w"], scaled, route(params, scaled))
        return jnp.mean((out - y) ** 2), out

    (loss, out), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss, out


def example_args():
    rng = np.random.default_rng(25)
    params = {
        "router": jnp.asarray(rng.normal(size=(5, N_EXPERTS)), jnp.float32),
        "w": jnp.asarray(rng.normal(size=(N_EXPERTS, 5, 5)) / 2, jnp.float32),
        "norm": jnp.asarray(rng.normal(size=5) + 1, jnp.float32),
    }
    x, y = (jnp.asarray(rng.normal(size=(24, 5)), jnp.float32) for _ in range(2))
    return params, tx.init(params), x, y


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="residual_scattered_too",
        old='    return x + lax.psum_scatter(partial, "expert", tiled=True)\n',
        new='    return lax.psum_scatter(tokens + partial, "expert", tiled=True)\n',
        causes=("bias_n_times",),
    ),
    Bug(
        name="weights_of_the_first_experts",
        old='first = lax.axis_index("expert") * n_local',
        new="first = 0",
        causes=("only_shard_0",),
    ),
    Bug(
        name="weights_normalized_on_each_device",
        old="    partial = apply_experts(",
        new="    mine = mine / jnp.maximum(mine.sum(-1, keepdims=True), 1e-6)\n"
        "    partial = apply_experts(",
    ),
    Bug(
        name="averaged_back",
        old='return x + lax.psum_scatter(partial, "expert", tiled=True)',
        new='return x + lax.psum_scatter(partial, "expert", tiled=True) / lax.axis_size("expert")',
        causes=("divided_by_n",),
    ),
)
