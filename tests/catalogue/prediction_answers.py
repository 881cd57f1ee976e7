"""Computes the answers of the pages' questions on 8 host devices; prints them as JSON by slug."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab.collectives.wire import wire_bytes
from shardlab.sharding.layout import layout


def type_text(array) -> str:
    return f"f32[{','.join(map(str, array.shape))}]"


def mesh(**sizes: int) -> Mesh:
    n = int(np.prod(list(sizes.values())))
    return Mesh(np.array(jax.devices()[:n]).reshape(*sizes.values()), tuple(sizes))


def shape_in_body(x, function, **sizes) -> str:
    """Return the type of function(shard) as the trace of the body sees it."""
    shapes = []

    def body(y):
        result = function(y)
        shapes.append(type_text(result))
        return result

    jax.shard_map(body, mesh=mesh(**sizes), in_specs=P("data"), out_specs=P("data"))(x)
    return shapes[0]


def held_bytes(x, spec, **sizes) -> list[int]:
    placed = jax.device_put(x, NamedSharding(mesh(**sizes), spec))
    return [shard.data.nbytes for shard in placed.addressable_shards]


def partition_spec_layout() -> str:
    spec = P(None, ("data", "model"))
    placed = jax.device_put(jnp.zeros((24, 8)), NamedSharding(mesh(data=2, model=4), spec))
    own = layout((24, 8), "P(None,('data','model'))", "data=2,model=4", "f32")
    assert tuple(own.shard_shape) == placed.addressable_shards[0].data.shape
    return type_text(placed.addressable_shards[0].data)


def shard_map_psum() -> str:
    total = jax.shard_map(
        lambda y: jax.lax.psum(jnp.sum(y), "data"), mesh=mesh(data=4), in_specs=P(), out_specs=P()
    )(jnp.arange(1.0, 9.0))
    return f"{float(total):g}"


def bytes_on_each_chip() -> str:
    (n_bytes,) = set(held_bytes(jnp.zeros((32, 16)), P("data", None), data=2, model=4))
    return str(n_bytes)


def row_parallel_linear() -> str:
    devices = mesh(model=4)
    x = jax.device_put(jnp.ones((4, 8)), NamedSharding(devices, P(None, "model")))
    w = jax.device_put(jnp.ones((8, 5)), NamedSharding(devices, P("model", None)))
    product = jax.jit(jnp.matmul, out_shardings=NamedSharding(devices, P()))
    text = product.lower(x, w).compile().as_text()
    names = {
        "an all-gather of `w`": "all-gather",
        "an all-reduce": "all-reduce",
        "an all-to-all": "all-to-all",
    }
    (inserted,) = [choice for choice, op in names.items() if f" {op}(" in text]
    return inserted


ANSWERS = {
    "partition-spec-layout": partition_spec_layout,
    "bytes-on-each-chip": bytes_on_each_chip,
    "the-collective-bill": lambda: f"{wire_bytes('psum', 2**20, 4) / 2**20:g} MiB",
    "replicated-sharding": lambda: str(sum(held_bytes(jnp.zeros(256), P(), data=8))),
    "shard-map-basics": lambda: shape_in_body(jnp.zeros(12), lambda y: y, data=4),
    "shard-map-psum": shard_map_psum,
    "row-parallel-linear": row_parallel_linear,
    "nnx-shard-map": lambda: shape_in_body(
        jnp.zeros((12, 5)), nnx.Linear(5, 7, rngs=nnx.Rngs(0)), data=4
    ),
}

if __name__ == "__main__":
    print(json.dumps({slug: compute() for slug, compute in ANSWERS.items()}))
