"""Mixture of experts: tokens replicated, experts sharded, top-2 results combined by one psum."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "expert=4"
N_EXPERTS, DIM, HIDDEN = 24, 5, 7
SPECS = {
    "router": P(),
    "experts": {"up": P("expert"), "down": P("expert")},
    "shared": {"up": P(), "down": P()},
}
tx = optax.adam(0.02, eps=1e-3)


def ffn(weights, x):
    return jax.nn.gelu(x @ weights["up"]) @ weights["down"]


def gates(router, x):
    """Return the weight of every expert for each token: zero but for two."""
    scores, chosen = lax.top_k(x @ router, 2)
    weights = jax.nn.softmax(scores)
    return jnp.einsum("tk,tke->te", weights, jax.nn.one_hot(chosen, router.shape[1]))


def moe_layer(params, x):
    n_local = params["experts"]["up"].shape[0]
    first = lax.axis_index("expert") * n_local
    mine = lax.dynamic_slice_in_dim(gates(params["router"], x), first, n_local, 1)
    outputs = jax.vmap(ffn, (0, None))(params["experts"], x)
    routed = jnp.einsum("te,etd->td", mine, outputs)
    return lax.psum(routed, "expert") + ffn(params["shared"], x)


def step(params, opt_state, x, y):
    layer = jax.shard_map(moe_layer, in_specs=(SPECS, P()), out_specs=P())

    def loss_fn(params):
        return jnp.mean((x + layer(params, x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def reference(params, opt_state, x, y):
    def loss_fn(params):
        outputs = jax.vmap(ffn, (0, None))(params["experts"], x)
        routed = jnp.einsum("te,etd->td", gates(params["router"], x), outputs)
        return jnp.mean((x + routed + ffn(params["shared"], x) - y) ** 2)

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(60)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = {
        "router": 2 * normal(DIM, N_EXPERTS),
        "experts": {"up": normal(N_EXPERTS, DIM, HIDDEN), "down": normal(N_EXPERTS, HIDDEN, DIM)},
        "shared": {"up": normal(DIM, HIDDEN), "down": normal(HIDDEN, DIM)},
    }
    return params, tx.init(params), normal(32, DIM), normal(32, DIM)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="combined_by_pmean",
        old='lax.psum(routed, "expert")',
        new='lax.pmean(routed, "expert")',
        causes=("divided_by_n",),
    ),
    Bug(
        name="shared_expert_inside_the_psum",
        old='    return lax.psum(routed, "expert") + ffn(params["shared"], x)\n',
        new='    return lax.psum(routed + ffn(params["shared"], x), "expert")\n',
        causes=("bias_n_times",),
    ),
    Bug(
        name="gates_of_the_first_experts",
        old='    first = lax.axis_index("expert") * n_local\n',
        new="    first = 0\n",
        causes=("only_shard_0",),
    ),
    Bug(
        name="best_two_of_the_local_experts",
        old='mine = lax.dynamic_slice_in_dim(gates(params["router"], x), first, n_local, 1)',
        new='mine = gates(lax.dynamic_slice_in_dim(params["router"], first, n_local, 1), x)',
    ),
)
