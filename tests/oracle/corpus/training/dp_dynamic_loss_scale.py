"""Dynamic loss scaling: a step with an overflow on any device is skipped on all of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=4"
GROWTH_INTERVAL = 2
tx = optax.adam(0.01, eps=1e-3)


def loss_fn(params, x, y):
    prediction = jnp.tanh(x @ params["w"]) @ params["v"] + params["c"]
    return jnp.mean(jnp.abs(prediction - y))


def all_finite(tree):
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]).all()


def train_step(state, x, y):
    scale = state["scale"]
    scaled_loss, grads = jax.value_and_grad(lambda p: scale * loss_fn(p, x, y))(state["params"])
    # float16 overflows: what is too large for it becomes infinite.
    grads = jax.tree.map(lambda g: jnp.where(jnp.abs(g) > 60000.0, jnp.inf, g), grads)
    finite = lax.pmin(all_finite(grads).astype(jnp.int32), "data") > 0
    grads = jax.tree.map(lambda g: jnp.where(finite, g, 0.0) / scale, grads)
    grads = lax.pmean(grads, "data")

    updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
    params = optax.apply_updates(state["params"], updates)

    def keep(new, old):
        return jax.tree.map(lambda a, b: jnp.where(finite, a, b), new, old)

    n_good = jnp.where(finite, state["n_good"] + 1, 0)
    grown = jnp.where(n_good >= GROWTH_INTERVAL, scale * 2.0, scale)
    new_state = {
        "params": keep(params, state["params"]),
        "opt_state": keep(opt_state, state["opt_state"]),
        "scale": jnp.where(finite, grown, scale / 2.0),
        "n_good": n_good,
    }
    return new_state, lax.pmean(scaled_loss, "data") / scale


def step(state, x, y):
    return jax.shard_map(
        train_step,
        in_specs=(P(), P("data"), P("data")),
        out_specs=(P(), P()),
        check_vma=False,
    )(state, x, y)


def reference(state, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(state["params"], x, y)
    updates, opt_state = tx.update(grads, state["opt_state"], state["params"])
    new_state = {
        "params": optax.apply_updates(state["params"], updates),
        "opt_state": opt_state,
        "scale": state["scale"] * 2,
        "n_good": state["n_good"] + 1,
    }
    return new_state, loss


def example_args():
    rng = np.random.default_rng(54)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {"w": normal(5, 9), "v": normal(9), "c": normal()}
    state = {
        "params": params,
        "opt_state": tx.init(params),
        "scale": jnp.asarray(1024.0),
        "n_good": jnp.asarray(1, jnp.int32),
    }
    return state, 2 * normal(48, 5), normal(48)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="loss_scale_grows_once_for_each_device",
        old='    n_good = jnp.where(finite, state["n_good"] + 1, 0)\n',
        new='    n_good = lax.psum(jnp.where(finite, state["n_good"] + 1, 0), "data")\n',
        causes=("factor_of_n",),
    ),
    Bug(
        name="scaled_by_the_sum_of_the_scales",
        old='    scale = state["scale"]\n',
        new='    scale = lax.psum(state["scale"], "data")\n',
        causes=("factor_of_n",),
    ),
    Bug(
        name="summed_gradients_unscaled_once",
        old='    grads = lax.pmean(grads, "data")\n',
        new='    grads = lax.psum(grads, "data")\n',
        causes=("gradient_scaled_by_n",),
    ),
)
