"""Arrays that are created outside of a jit count in full; those that a jit shards do not."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab.judge.worker.tracing import eager_bytes

MESH = Mesh(jax.devices()[:1], ("data",))
SPLIT = NamedSharding(MESH, PartitionSpec("data"))


def draw():
    return jax.random.normal(jax.random.key(0), (6, 4))  # 96 bytes


def place(x):
    return jax.lax.with_sharding_constraint(x, SPLIT)


@pytest.mark.parametrize(
    ("program", "n_bytes"),
    [
        (draw, 96),
        (lambda: place(draw()), 96),
        (lambda: place(jax.jit(draw)()), 96),
        (lambda: jax.jit(draw, out_shardings=SPLIT)(), 0),
        (lambda: jax.jit(lambda: place(draw()))(), 0),
        (lambda: jax.jit(lambda: jax.jit(draw, out_shardings=SPLIT)())(), 0),
        # What is sharded stays sharded; what is created beside it is small.
        (lambda: 2 * jax.jit(draw, out_shardings=SPLIT)() + jnp.arange(4.0), 16),
        (lambda: jax.shard_map(draw, mesh=MESH, in_specs=(), out_specs=PartitionSpec())(), 0),
    ],
)
def test_the_largest_array_that_an_operation_creates_unsharded(program, n_bytes):
    assert eager_bytes(jax.make_jaxpr(program)()) == n_bytes


def test_arguments_are_on_the_mesh_already():
    assert eager_bytes(jax.make_jaxpr(lambda x: 2 * x)(jnp.ones((6, 4)))) == 0
