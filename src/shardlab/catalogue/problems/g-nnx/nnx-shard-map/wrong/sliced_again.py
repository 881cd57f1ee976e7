# SHAPE: the body slices rows that are already the rows of this device
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

    def forward(y):
        chunk = y.shape[0] // mesh.shape[axis]
        start = jax.lax.axis_index(axis) * chunk
        return model(jax.lax.dynamic_slice_in_dim(y, start, chunk, axis=0)).reshape(-1)

    spec = PartitionSpec(axis)
    return jax.shard_map(forward, mesh=mesh, in_specs=spec, out_specs=spec)(x)
