"""Pipeline with data parallel: GPipe by a scan over ticks, remat, embedding first and head last."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,stage=4"
LAYERS, DIM, VOCAB, N_MICROBATCHES = 8, 6, 11, 4
SPECS = {"embed": P(), "layers": P("stage"), "head": P()}
tx = optax.chain(optax.scale_by_rms(eps=1e-3), optax.scale(-0.01))


@jax.checkpoint
def run_layers(layers, x):
    def layer(x, p):
        h = x - x.mean(-1, keepdims=True)
        return x + jax.nn.gelu(h @ p["up"]) @ p["down"], None

    return lax.scan(layer, x, layers)[0]


def token_loss(logits, labels):
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    mask = labels != 0
    return (losses * mask).sum(), mask.sum()


def pipeline_loss(params, tokens, labels):
    n_stages, stage = lax.axis_size("stage"), lax.axis_index("stage")
    micro = tokens.reshape(N_MICROBATCHES, -1, tokens.shape[-1])
    embedded = params["embed"][micro]
    ring = [(i, (i + 1) % n_stages) for i in range(n_stages)]

    def tick(state, t):
        x = jnp.where(stage == 0, embedded[jnp.minimum(t, N_MICROBATCHES - 1)], state)
        y = run_layers(params["layers"], x)
        return lax.ppermute(y, "stage", ring), y

    n_ticks = N_MICROBATCHES + n_stages - 1
    _, outputs = lax.scan(tick, jnp.zeros_like(embedded[0]), jnp.arange(n_ticks))
    outputs = outputs[n_stages - 1 :].reshape(*tokens.shape, DIM)
    total, count = token_loss(outputs @ params["head"], labels)
    total = jnp.where(stage == n_stages - 1, total, 0.0)
    return lax.psum(total, ("data", "stage")) / lax.psum(count, "data")


def step(params, opt_state, tokens, labels):
    loss_fn = jax.shard_map(
        pipeline_loss, in_specs=(SPECS, P("data"), P("data")), out_specs=P(), check_vma=False
    )
    loss, grads = jax.value_and_grad(loss_fn)(params, tokens, labels)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def reference(params, opt_state, tokens, labels):
    def loss_fn(params):
        x = run_layers(params["layers"], params["embed"][tokens])
        total, count = token_loss(x @ params["head"], labels)
        return total / count

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(38)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape) / 2, jnp.float32)

    layers = {"up": normal(LAYERS, DIM, 10), "down": normal(LAYERS, 10, DIM)}
    params = {"embed": normal(VOCAB, DIM), "layers": layers, "head": normal(DIM, VOCAB)}
    tokens = jnp.asarray(rng.integers(1, VOCAB, (16, 5)))
    labels = jnp.where(rng.random((16, 5)) < 0.8, rng.integers(1, VOCAB, (16, 5)), 0)
    return params, tx.init(params), tokens, labels


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="loss_of_every_stage",
        old="    total = jnp.where(stage == n_stages - 1, total, 0.0)\n"
        '    return lax.psum(total, ("data", "stage")) / lax.psum(count, "data")\n',
        new='    return lax.pmean(lax.psum(total, "data") / lax.psum(count, "data"), "stage")\n',
    ),
    Bug(
        name="outputs_taken_one_tick_early",
        old="    outputs = outputs[n_stages - 1 :].reshape(*tokens.shape, DIM)\n",
        new="    outputs = outputs[:N_MICROBATCHES].reshape(*tokens.shape, DIM)\n",
    ),
)
