"""Ring attention over packed documents: segment ids travel with the keys; also data parallel."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "data=2,seq=4"
AXES = ("data", "seq")
DIM, HEAD, LENGTH, OUT = 6, 4, 16, 3
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.01, eps=1e-3))


def block_scores(q, k, q_segments, k_segments, rows, columns):
    scores = jnp.einsum("bqd,bkd->bqk", q, k) * HEAD**-0.5
    same = q_segments[:, :, None] == k_segments[:, None, :]
    return jnp.where(same & (rows[:, None] >= columns[None, :]), scores, -1e30)


def ring_attention(q, k, v, segments):
    n, device = lax.axis_size("seq"), lax.axis_index("seq")
    here = jnp.arange(q.shape[1])
    rows = device * q.shape[1] + here
    forward = [(i, (i + 1) % n) for i in range(n)]

    @jax.checkpoint
    def visit(i, carry):
        (k, v, k_segments), (largest, total, out) = carry
        columns = (device - i) % n * q.shape[1] + here
        scores = block_scores(q, k, segments, k_segments, rows, columns)
        new_largest = jnp.maximum(largest, scores.max(-1))
        weights = jnp.exp(scores - new_largest[..., None])
        scale = jnp.exp(largest - new_largest)
        total = scale * total + weights.sum(-1)
        out = scale[..., None] * out + weights @ v
        block = lax.ppermute((k, v, k_segments), "seq", forward)
        return block, (new_largest, total, out)

    zeros = jnp.zeros(q.shape[:2])
    carry = (k, v, segments), (zeros - 1e30, zeros, jnp.zeros_like(v))
    for i in range(n):
        carry = visit(i, carry)
    _, (_, total, out) = carry
    return out / total[..., None]


def token_losses(params, batch, attention):
    x = batch["x"]
    q, k, v = (x @ params[name] for name in ("q", "k", "v"))
    out = jax.nn.gelu(attention(q, k, v, batch["segment"])) @ params["out"]
    return ((out - batch["y"]) ** 2).sum(-1) * batch["mask"]


def update(params, opt_state, batch):
    count = lax.psum(batch["mask"].sum(), AXES)

    def local_loss(params):
        return token_losses(params, batch, ring_attention).sum() / count

    loss, grads = jax.value_and_grad(local_loss)(params)
    loss, grads = lax.psum((loss, grads), AXES)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def step(params, opt_state, batch):
    return jax.shard_map(
        update, in_specs=(P(), P(), P("data", "seq")), out_specs=P(), check_vma=False
    )(params, opt_state, batch)


def plain_attention(q, k, v, segments):
    positions = jnp.arange(q.shape[1])
    scores = block_scores(q, k, segments, segments, positions, positions)
    return jax.nn.softmax(scores) @ v


def reference(params, opt_state, batch):
    def loss_fn(params):
        return token_losses(params, batch, plain_attention).sum() / batch["mask"].sum()

    loss, grads = jax.value_and_grad(loss_fn)(params)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, loss


def example_args():
    rng = np.random.default_rng(42)

    def normal(*shape):
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    params = {name: normal(DIM, HEAD) for name in ("q", "k", "v")} | {"out": normal(HEAD, OUT)}
    starts = rng.random((8, LENGTH)) < 0.2
    batch = {
        "x": normal(8, LENGTH, DIM),
        "y": normal(8, LENGTH, OUT),
        "segment": jnp.asarray(starts.cumsum(1), jnp.int32),
        "mask": jnp.asarray(rng.random((8, LENGTH)) < np.linspace(1, 0.3, LENGTH), jnp.float32),
    }
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="segments_stay_behind",
        old='        block = lax.ppermute((k, v, k_segments), "seq", forward)\n',
        new='        block = (*lax.ppermute((k, v), "seq", forward), k_segments)\n',
    ),
    Bug(
        name="loss_averaged_by_device",
        old='    count = lax.psum(batch["mask"].sum(), AXES)\n',
        new='    count = batch["mask"].sum()\n',
        also=(
            (
                "    loss, grads = lax.psum((loss, grads), AXES)\n",
                "    loss, grads = lax.pmean((loss, grads), AXES)\n",
            ),
        ),
        causes=("mean_of_means",),
    ),
)
