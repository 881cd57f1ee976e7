# API: every device gets all rows, applies the model to them, and keeps its part of the result
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec


def shard_map_simulate(seed, x, num_shards, features):
    num_shards = int(num_shards)
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))
    chunk = x.shape[0] // num_shards
    outs = []
    for i in range(num_shards):
        x_shard = jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk, axis=0)
        outs.append(model(x_shard))
    return jnp.concatenate(outs, axis=0).reshape(-1)


def nnx_shard_map(seed, x, mesh, features):
    axis = mesh.axis_names[0]
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))
    size = x.shape[0] * int(features) // mesh.shape[axis]

    def forward(x):
        start = jax.lax.axis_index(axis) * size
        return jax.lax.dynamic_slice_in_dim(model(x).reshape(-1), start, size)

    return jax.shard_map(
        forward, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(axis)
    )(x)
