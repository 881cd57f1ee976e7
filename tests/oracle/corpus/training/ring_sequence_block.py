"""Ring attention with rotary positions, after a causal convolution with a halo."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import PartitionSpec as P

from training.bug import Bug

MESH = "seq=4"
tx = optax.adamw(1e-2)


def rotate(x, positions):
    angles = positions[:, None] / 10 ** jnp.arange(x.shape[-1] // 2)
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate(
        [a * jnp.cos(angles) - b * jnp.sin(angles), a * jnp.sin(angles) + b * jnp.cos(angles)], -1
    )


def convolve(x, before, kernel):
    padded = jnp.concatenate([before, x], 1)
    n = x.shape[1]
    return sum(padded[:, i : i + n] * kernel[i] for i in range(kernel.shape[0]))


def ring(q, k, v, n, pairs):
    def block(carry, _):
        k, v, acc, total = carry
        powers = jnp.exp(q @ k.swapaxes(-1, -2) / q.shape[-1])
        carry = (
            lax.ppermute(k, "seq", pairs),
            lax.ppermute(v, "seq", pairs),
            acc + powers @ v,
            total + powers.sum(-1, keepdims=True),
        )
        return carry, None

    start = (k, v, jnp.zeros_like(q), jnp.zeros_like(q[..., :1]))
    (_, _, acc, total), _ = lax.scan(block, start, None, length=n)
    return acc / total


def sharded_loss(params, batch):
    n, index = lax.axis_size("seq"), lax.axis_index("seq")
    pairs = [(i, (i + 1) % n) for i in range(n)]
    x = batch["x"]
    halo = lax.ppermute(x[:, -2:], "seq", pairs)
    halo = jnp.where(index == 0, 0.0, halo)
    x = convolve(x, halo, params["kernel"])
    positions = index * x.shape[1] + jnp.arange(x.shape[1])
    q, k = (rotate(x @ params[name], positions) for name in "qk")
    out = ring(q, k, x @ params["v"], n, pairs)
    return lax.pmean(jnp.mean((out - batch["y"]) ** 2), "seq")


def plain_loss(params, batch):
    x = batch["x"]
    x = convolve(x, jnp.zeros_like(x[:, :2]), params["kernel"])
    q, k = (rotate(x @ params[name], jnp.arange(x.shape[1])) for name in "qk")
    powers = jnp.exp(q @ k.swapaxes(-1, -2) / q.shape[-1])
    out = powers @ (x @ params["v"]) / powers.sum(-1, keepdims=True)
    return jnp.mean((out - batch["y"]) ** 2)


def update(params, opt_state, batch, loss_fn):
    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    updates, opt_state = tx.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), loss


def step(params, opt_state, batch):
    loss_fn = jax.shard_map(sharded_loss, in_specs=(P(), P(None, "seq")), out_specs=P())
    return update(params, opt_state, batch, loss_fn)


def reference(params, opt_state, batch):
    return update(params, opt_state, batch, plain_loss)


def example_args():
    rng = np.random.default_rng(26)
    params = {name: jnp.asarray(rng.normal(size=(4, 4)) / 4, jnp.float32) for name in "qkv"}
    params["kernel"] = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    batch = {name: jnp.asarray(rng.normal(size=(2, 24, 4)), jnp.float32) for name in "xy"}
    return params, tx.init(params), batch


# ------------------------------------------------------------------------------------------- bugs

BUGS = (
    Bug(
        name="positions_start_again",
        old="positions = index * x.shape[1] + jnp.arange(x.shape[1])",
        new="positions = jnp.arange(x.shape[1])",
        causes=("only_shard_0",),
    ),
    Bug(
        name="halo_missing",
        old='    halo = lax.ppermute(x[:, -2:], "seq", pairs)\n'
        "    halo = jnp.where(index == 0, 0.0, halo)\n",
        new="    halo = jnp.zeros_like(x[:, :2])\n",
    ),
    Bug(
        name="halo_wraps_around",
        old="    halo = jnp.where(index == 0, 0.0, halo)\n",
        new="",
        needs_reference=True,
    ),
    Bug(
        name="values_not_rotated",
        old='            lax.ppermute(v, "seq", pairs),\n',
        new="            v,\n",
    ),
    Bug(
        name="ring_one_step_short",
        old="start, None, length=n)",
        new="start, None, length=max(1, n - 1))",
    ),
)
