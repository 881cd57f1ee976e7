# API: the slices are concatenated again before the model is applied to all rows at once
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
        outs.append(x_shard)
    return model(jnp.concatenate(outs, axis=0)).reshape(-1)


def nnx_shard_map(seed, x, mesh, features):
    axis = mesh.axis_names[0]
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))
    spec = PartitionSpec(axis)
    return jax.shard_map(lambda y: model(y).reshape(-1), mesh=mesh, in_specs=spec, out_specs=spec)(
        x
    )
