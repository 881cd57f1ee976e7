"""Residuals that a shard_map saves for its backward pass are not copied once per device."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import shardlab


def loss(w1, w2, x):
    return jnp.sum(jnp.sin(jnp.tanh(x @ w1) @ w2))


def sharded(n_devices):
    return shardlab.shard_map(
        lambda *args: jax.lax.psum(loss(*args), "data"),
        mesh=f"data={n_devices}",
        in_specs=(P(), P(), P("data")),
        out_specs=P(),
    )


def arguments():
    draw = np.random.default_rng(3)
    shapes = [(64, 128), (128, 32), (256, 64)]
    return [jnp.asarray(draw.standard_normal(shape, np.float32) / 9) for shape in shapes]


def temporary_bytes(f):
    compiled = jax.jit(jax.grad(f, argnums=(0, 1))).lower(*arguments()).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_shared_weight_is_not_copied_for_each_device():
    # 64 copies of the second weight alone would be 1 MiB; the unsharded gradient needs a quarter.
    assert temporary_bytes(sharded(64)) <= 1.6 * temporary_bytes(loss)


def test_memory_of_a_gradient_does_not_grow_with_the_mesh():
    assert temporary_bytes(sharded(256)) <= 1.2 * temporary_bytes(sharded(8))


def test_gradient_is_that_of_the_unsharded_loss():
    ours = jax.jit(jax.grad(sharded(64), argnums=(0, 1)))(*arguments())
    plain = jax.grad(loss, argnums=(0, 1))(*arguments())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours, plain)
