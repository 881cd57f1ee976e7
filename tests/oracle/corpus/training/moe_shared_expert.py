"""Mixture of experts under jit: top-2 gates, experts in a shard_map, a shared expert, a z loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,expert=4"
N_EXPERTS, DIM, HIDDEN = 8, 6, 10
SPECS = {
    "router": P(),
    "up": P("expert"),
    "down": P("expert"),
    "shared_up": P(),
    "shared_down": P(),
    "head": P(),
}
tx = optax.adam(0.01, eps=1e-3)


def gates_of(x, router):
    """Return the weight of each expert for each token: zero but for the two best, sum one."""
    logits = x @ router
    probabilities = jax.nn.softmax(logits)
    second = lax.top_k(probabilities, 2)[0][:, 1:]
    gates = jnp.where(probabilities >= second, probabilities, 0)
    z_loss = jnp.mean(jax.nn.logsumexp(logits, -1) ** 2)
    return gates / gates.sum(-1, keepdims=True), z_loss


def routed(x, gates, up, down):
    hidden = jax.nn.silu(jnp.einsum("td,edh->teh", x, up))
    return jnp.einsum("teh,ehd,te->td", hidden, down, gates)


def shared(x, params):
    return jax.nn.silu(x @ params["shared_up"]) @ params["shared_down"]


def layer(params, x, gates):
    """Sum the experts of every device; each sees all tokens of its data shard."""
    first = lax.axis_index("expert") * params["up"].shape[0]
    local = lax.dynamic_slice_in_dim(gates, first, params["up"].shape[0], axis=1)
    out = routed(x, local, params["up"], params["down"])
    return shared(x, params) + lax.psum(out, "expert")


def loss_fn(params, x, y, layer):
    gates, z_loss = gates_of(x, params["router"])
    out = x + layer(params, x, gates)
    return jnp.mean((out @ params["head"] - y) ** 2) + 1e-2 * z_loss


def train_step(params, opt_state, x, y):
    sharded_layer = jax.shard_map(
        layer, in_specs=(SPECS, P("data"), P("data")), out_specs=P("data")
    )
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y, sharded_layer)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


step = jax.jit(train_step, in_shardings=(SPECS, None, P("data"), P("data")))


def reference(params, opt_state, x, y):
    def layer(params, x, gates):
        return shared(x, params) + routed(x, gates, params["up"], params["down"])

    loss, grads = jax.value_and_grad(loss_fn)(params, x, y, layer)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(40)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    params = {
        "router": 2 * normal(DIM, N_EXPERTS),
        "up": normal(N_EXPERTS, DIM, HIDDEN),
        "down": normal(N_EXPERTS, HIDDEN, DIM),
        "shared_up": normal(DIM, HIDDEN),
        "shared_down": normal(HIDDEN, DIM),
        "head": normal(DIM, 3),
    }
    return params, tx.init(params), 2 * normal(32, DIM), normal(32, 3)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="shared_expert_summed",
        old='    return shared(x, params) + lax.psum(out, "expert")\n',
        new='    return lax.psum(shared(x, params) + out, "expert")\n',
        causes=("bias_n_times",),
    ),
    Bug(
        name="gates_normalized_over_local_experts",
        old="    out = routed(x, local,",
        new="    local = local / (local.sum(-1, keepdims=True) + 1e-9)\n    out = routed(x, local,",
    ),
)
