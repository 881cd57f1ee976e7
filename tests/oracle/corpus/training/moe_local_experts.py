"""Mixture of experts: every device applies its experts to all tokens; a psum combines them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,expert=4"
N_EXPERTS = 12
tx = optax.sgd(0.1, momentum=0.9)
SPECS = {"router": P(), "up": P("expert"), "down": P("expert"), "shared": P()}


def combine_weights(params, x):
    values, indices = lax.top_k(x @ params["router"], 2)
    return (jax.nn.one_hot(indices, N_EXPERTS) * jax.nn.softmax(values)[..., None]).sum(1)


def local_experts(params, x, weights):
    hidden = jax.nn.gelu(jnp.einsum("td,edf->etf", x, params["up"]))
    return jnp.einsum("etf,efd,te->td", hidden, params["down"], weights)


def balance_loss(weights, used):
    return N_EXPERTS * jnp.sum(weights * used)


def forward(params, x):
    weights = combine_weights(params, x)
    n_local = params["up"].shape[0]
    first = lax.axis_index("expert") * n_local
    local = lax.dynamic_slice_in_dim(weights, first, n_local, axis=1)
    out = lax.psum(local_experts(params, x, local), "expert") + jnp.tanh(x @ params["shared"])
    mean_weight, mean_used = lax.pmean((weights.mean(0), (weights > 0).mean(0)), "data")
    return out, balance_loss(mean_weight, mean_used)


def step(params, opt_state, x, y):
    @jax.shard_map(in_specs=(SPECS, P("data"), P("data")), out_specs=(P(), P()))
    def losses(params, x, y):
        out, balance = forward(params, x)
        return lax.pmean(jnp.mean((out - y) ** 2), "data"), balance

    def loss_fn(params):
        loss, balance = losses(params, x, y)
        return loss + 0.01 * balance, (loss, balance)

    (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, metrics


def reference(params, opt_state, x, y):
    def loss_fn(params):
        weights = combine_weights(params, x)
        out = local_experts(params, x, weights) + jnp.tanh(x @ params["shared"])
        balance = balance_loss(weights.mean(0), (weights > 0).mean(0))
        loss = jnp.mean((out - y) ** 2)
        return loss + 0.01 * balance, (loss, balance)

    (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, metrics


def example_args():
    rng = np.random.default_rng(11)
    params = {
        "router": jnp.asarray(rng.normal(size=(5, N_EXPERTS)), jnp.float32),
        "up": jnp.asarray(rng.normal(size=(N_EXPERTS, 5, 7)), jnp.float32),
        "down": jnp.asarray(rng.normal(size=(N_EXPERTS, 7, 5)) / 3, jnp.float32),
        "shared": jnp.asarray(rng.normal(size=(5, 5)), jnp.float32),
    }
    x = jnp.asarray(rng.normal(size=(24, 5)), jnp.float32)
    y = jnp.asarray(rng.normal(size=(24, 5)), jnp.float32)
    return params, tx.init(params), x, y


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="every_device_takes_the_first_experts",
        old='first = lax.axis_index("expert") * n_local',
        new="first = 0 * n_local",
        causes=("only_shard_0",),
    ),
    Bug(
        name="shared_expert_inside_the_sum",
        old='lax.psum(local_experts(params, x, local), "expert") + jnp.tanh(x @ params["shared"])',
        new='lax.psum(local_experts(params, x, local) + jnp.tanh(x @ params["shared"]), "expert")',
        causes=("bias_n_times",),
    ),
    Bug(
        name="balance_of_each_device_averaged",
        old="    mean_weight, mean_used = lax.pmean((weights.mean(0), (weights > 0).mean(0)), "
        '"data")\n    return out, balance_loss(mean_weight, mean_used)\n',
        new="    balance = balance_loss(weights.mean(0), (weights > 0).mean(0))\n"
        '    return out, lax.pmean(balance, "data")\n',
        causes=("local_reduction",),
    ),
    Bug(
        name="experts_averaged",
        old='lax.psum(local_experts(params, x, local), "expert")',
        new='lax.pmean(local_experts(params, x, local), "expert")',
        causes=("divided_by_n",),
    ),
)
