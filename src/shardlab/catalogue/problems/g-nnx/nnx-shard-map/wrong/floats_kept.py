# RTE: a seed and sizes that are floats are not cast to int
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec


def shard_map_simulate(seed, x, num_shards, features):
    model = nnx.Linear(x.shape[-1], features, rngs=nnx.Rngs(seed))
    chunk = x.shape[0] // num_shards
    outs = []
    for i in range(num_shards):
        x_shard = jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk, axis=0)
        outs.append(model(x_shard))
    return jnp.concatenate(outs, axis=0).reshape(-1)


def nnx_shard_map(seed, x, mesh, features):
    axis = mesh.axis_names[0]
    model = nnx.Linear(x.shape[-1], features, rngs=nnx.Rngs(seed))
    spec = PartitionSpec(axis)
    return jax.shard_map(lambda y: model(y).reshape(-1), mesh=mesh, in_specs=spec, out_specs=spec)(
        x
    )
