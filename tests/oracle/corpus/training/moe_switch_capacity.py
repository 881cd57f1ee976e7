"""Mixture of experts: top-1 routing, dropped tokens over capacity, all_to_all, a balancing loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "expert=4"
N_EXPERTS, DIM, HIDDEN, LENGTH, CAPACITY = 8, 6, 10, 12, 2
SPECS = {"router": P(), "up": P("expert"), "down": P("expert"), "head": P()}
tx = optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(0.1))


def route(x, router):
    """Return the dispatch mask [row, token, expert, slot] and the gate; each row drops its own."""
    probabilities = jax.nn.softmax(x @ router)
    chosen = jax.nn.one_hot(probabilities.argmax(-1), N_EXPERTS)
    slot = (jnp.cumsum(chosen, 1) - 1) * chosen
    is_kept = (slot < CAPACITY) * chosen
    dispatch = is_kept[..., None] * jax.nn.one_hot(slot.astype(int), CAPACITY)
    return dispatch, (probabilities * chosen).sum(-1), probabilities, chosen


def experts(params, tokens):
    """Apply expert e to tokens[e]."""
    hidden = jax.nn.relu(jnp.einsum("ebcd,edh->ebch", tokens, params["up"]))
    return jnp.einsum("ebch,ehd->ebcd", hidden, params["down"])


def loss_fn(params, x, y):
    dispatch, gate, probabilities, chosen = route(x, params["router"])
    sent = jnp.einsum("btec,btd->ebcd", dispatch, x)
    sent = lax.all_to_all(sent, "expert", split_axis=0, concat_axis=1, tiled=True)
    done = experts(params, sent)
    done = lax.all_to_all(done, "expert", split_axis=1, concat_axis=0, tiled=True)
    out = x + gate[..., None] * jnp.einsum("btec,ebcd->btd", dispatch, done)
    task = lax.pmean(jnp.mean((out @ params["head"] - y) ** 2), "expert")
    share = lax.pmean(chosen.mean((0, 1)), "expert")
    weight = lax.pmean(probabilities.mean((0, 1)), "expert")
    balance = N_EXPERTS * (share * weight).sum()
    return task + 0.1 * balance, {"task": task, "balance": balance}


def update(params, opt_state, x, y):
    (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params, x, y)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, metrics


def step(params, opt_state, x, y):
    return jax.shard_map(
        update,
        in_specs=(SPECS, P(), P("expert"), P("expert")),
        out_specs=(SPECS, P(), P()),
    )(params, opt_state, x, y)


def reference(params, opt_state, x, y):
    def loss_fn(params):
        dispatch, gate, probabilities, chosen = route(x, params["router"])
        done = experts(params, jnp.einsum("btec,btd->ebcd", dispatch, x))
        out = x + gate[..., None] * jnp.einsum("btec,ebcd->btd", dispatch, done)
        task = jnp.mean((out @ params["head"] - y) ** 2)
        balance = N_EXPERTS * (chosen.mean((0, 1)) * probabilities.mean((0, 1))).sum()
        return task + 0.1 * balance, {"task": task, "balance": balance}

    (_, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, metrics


def example_args():
    rng = np.random.default_rng(39)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {
        "router": 2 * normal(DIM, N_EXPERTS),
        "up": normal(N_EXPERTS, DIM, HIDDEN),
        "down": normal(N_EXPERTS, HIDDEN, DIM),
        "head": normal(DIM, 3),
    }
    x = 2 * normal(16, LENGTH, DIM)
    return params, tx.init(params), x, normal(16, LENGTH, 3)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="balance_of_the_local_tokens",
        old='    share = lax.pmean(chosen.mean((0, 1)), "expert")\n'
        '    weight = lax.pmean(probabilities.mean((0, 1)), "expert")\n'
        "    balance = N_EXPERTS * (share * weight).sum()\n",
        new="    share, weight = chosen.mean((0, 1)), probabilities.mean((0, 1))\n"
        '    balance = lax.pmean(N_EXPERTS * (share * weight).sum(), "expert")\n',
    ),
    Bug(
        name="expert_gradients_averaged_over_experts",
        old="    updates, opt_state = tx.update(grads, opt_state, params)\n"
        "    return optax.apply_updates(params, updates), opt_state, metrics\n\n\ndef step",
        new='    grads = jax.tree.map(lambda g: lax.pmean(g, "expert"), grads)\n'
        "    updates, opt_state = tx.update(grads, opt_state, params)\n"
        "    return optax.apply_updates(params, updates), opt_state, metrics\n\n\ndef step",
    ),
)
