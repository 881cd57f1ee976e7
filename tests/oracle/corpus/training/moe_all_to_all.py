"""Mixture of experts: top-1 routing, tokens sent to the devices of their experts and back."""

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
tx = optax.sgd(0.1)
SPECS = {"router": P(), "up": P("expert"), "down": P("expert")}


def experts(params, tokens):
    hidden = jax.nn.relu(jnp.einsum("ecd,edf->ecf", tokens, params["up"]))
    return jnp.einsum("ecf,efd->ecd", hidden, params["down"])


def dispatch_mask(params, x):
    gates = jax.nn.softmax(x @ params["router"])
    choice = gates.argmax(-1)
    one_hot = jax.nn.one_hot(choice, N_EXPERTS)
    # Every token fits: the capacity is the number of local tokens.
    position = (jnp.cumsum(one_hot, 0) * one_hot).sum(-1) - 1
    slots = jax.nn.one_hot(position.astype(int), x.shape[0])
    return one_hot[:, :, None] * slots[:, None, :], gates.max(-1)


def moe(params, x):
    mask, gate = dispatch_mask(params, x)
    inputs = jnp.einsum("tec,td->ecd", mask, x)
    inputs = lax.all_to_all(inputs, "expert", split_axis=0, concat_axis=1, tiled=True)
    outputs = experts(params, inputs)
    outputs = lax.all_to_all(outputs, "expert", split_axis=1, concat_axis=0, tiled=True)
    return jnp.einsum("tec,ecd->td", mask, outputs) * gate[:, None]


def step(params, opt_state, x, y):
    def train_step(params, opt_state, x, y):
        def loss_fn(params):
            return lax.pmean(jnp.mean((x + moe(params, x) - y) ** 2), "expert")

        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, opt_state = tx.update(grads, opt_state)
        return optax.apply_updates(params, updates), loss

    return jax.shard_map(
        train_step,
        in_specs=(SPECS, P(), P("expert"), P("expert")),
        out_specs=(SPECS, P()),
    )(params, opt_state, x, y)


def reference(params, opt_state, x, y):
    def loss_fn(params):
        gates = jax.nn.softmax(x @ params["router"])
        choice = gates.argmax(-1)
        hidden = jax.nn.relu(jnp.einsum("td,tdf->tf", x, params["up"][choice]))
        out = jnp.einsum("tf,tfd->td", hidden, params["down"][choice]) * gates.max(-1)[:, None]
        return jnp.mean((x + out - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), loss


def example_args():
    rng = np.random.default_rng(10)
    params = {
        "router": jnp.asarray(rng.normal(size=(5, N_EXPERTS)), jnp.float32),
        "up": jnp.asarray(rng.normal(size=(N_EXPERTS, 5, 7)), jnp.float32),
        "down": jnp.asarray(rng.normal(size=(N_EXPERTS, 7, 5)) / 3, jnp.float32),
    }
    x = jnp.asarray(rng.normal(size=(48, 5)), jnp.float32)
    y = jnp.asarray(rng.normal(size=(48, 5)), jnp.float32)
    return params, tx.init(params), x, y


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="results_not_sent_back",
        old='    outputs = lax.all_to_all(outputs, "expert", split_axis=1, concat_axis=0, '
        "tiled=True)\n"
        '    return jnp.einsum("tec,ecd->td", mask, outputs) * gate[:, None]\n',
        new="    outputs = outputs.reshape(N_EXPERTS, -1, outputs.shape[-1])\n"
        '    return jnp.einsum("tec,ecd->td", mask, outputs) * gate[:, None]\n',
    ),
    Bug(
        name="sent_by_capacity_instead_of_expert",
        old='inputs, "expert", split_axis=0, concat_axis=1, tiled=True)',
        new='inputs.reshape(-1, lax.axis_size("expert"), *inputs.shape[1:]).swapaxes(0, 1)'
        '.reshape(inputs.shape), "expert", split_axis=0, concat_axis=1, tiled=True)',
    ),
    Bug(
        name="loss_summed_over_devices",
        old="lax.pmean(jnp.mean((x + moe(params, x) - y) ** 2)",
        new="lax.psum(jnp.mean((x + moe(params, x) - y) ** 2)",
        causes=("factor_of_n",),
    ),
    Bug(
        name="capacity_by_the_number_of_devices",
        old="slots = jax.nn.one_hot(position.astype(int), x.shape[0])",
        new="slots = jax.nn.one_hot(position.astype(int), x.shape[0] // N_EXPERTS or 1)",
    ),
)
