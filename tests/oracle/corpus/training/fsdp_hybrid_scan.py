"""FSDP in replica groups: layers gathered inside a scan with remat, global clipping, AdamW."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "replica=2,fsdp=4"
BATCH = ("replica", "fsdp")
DIM, LAYERS = 8, 3
SPECS = {"layers": {"w": P(None, "fsdp"), "b": P(None, "fsdp")}, "head": P("fsdp")}
MAX_NORM = 0.1
tx = optax.adamw(0.02, eps=1e-3, weight_decay=0.05)


def gather(shard):
    return lax.all_gather(shard, "fsdp", tiled=True)


def forward(params, x, gather):
    @jax.checkpoint
    def layer(x, shards):
        full = jax.tree.map(gather, shards)
        return x + jnp.tanh(x @ full["w"] + full["b"]), None

    x, _ = lax.scan(layer, x, params["layers"])
    return x @ gather(params["head"])


def mean_loss(params, x, y, gather):
    return jnp.mean((forward(params, x, gather) - y) ** 2)


def global_norm(grads):
    """Return the norm of the full gradient, of which each device has one shard."""
    squares = sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))
    return jnp.sqrt(lax.psum(squares, "fsdp"))


def clip(grads, norm):
    return jax.tree.map(lambda g: g * jnp.minimum(1.0, MAX_NORM / norm), grads)


def update(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(mean_loss)(params, x, y, gather)
    # The transpose of the all-gather has summed over fsdp.
    grads = jax.tree.map(lambda g: g / lax.axis_size("fsdp"), grads)
    grads = lax.pmean(grads, "replica")
    norm = global_norm(grads)
    updates, opt_state = tx.update(clip(grads, norm), opt_state, params)
    return optax.apply_updates(params, updates), opt_state, lax.pmean(loss, BATCH), norm


def step(params, opt_state, x, y):
    adam, *rest = opt_state
    opt_specs = (adam._replace(count=P(), mu=SPECS, nu=SPECS), *rest)
    return jax.shard_map(
        update,
        in_specs=(SPECS, opt_specs, P(BATCH), P(BATCH)),
        out_specs=(SPECS, opt_specs, P(), P()),
        check_vma=False,
    )(params, opt_state, x, y)


def reference(params, opt_state, x, y):
    loss, grads = jax.value_and_grad(mean_loss)(params, x, y, lambda p: p)
    norm = optax.global_norm(grads)
    updates, opt_state = tx.update(clip(grads, norm), opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss, norm


def example_args():
    rng = np.random.default_rng(35)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    layers = {"w": normal(LAYERS, DIM, DIM), "b": normal(LAYERS, DIM)}
    params = {"layers": layers, "head": normal(DIM, 3)}
    return params, tx.init(params), normal(16, DIM), normal(16, 3)


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="replica_groups_drift_apart",
        old='    grads = lax.pmean(grads, "replica")\n',
        new="",
        code="hazard.replicas_differ",
        causes=("missing_psum",),
    ),
    Bug(
        name="norm_of_the_shards_averaged",
        old='    return jnp.sqrt(lax.psum(squares, "fsdp"))\n',
        new='    return lax.pmean(jnp.sqrt(squares), "fsdp")\n',
    ),
)
