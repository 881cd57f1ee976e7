# WA: every slice gets a new model from the next draw of one Rngs
import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec


def shard_map_simulate(seed, x, num_shards, features):
    num_shards, rngs = int(num_shards), nnx.Rngs(int(seed))
    chunk = x.shape[0] // num_shards
    outs = []
    for i in range(num_shards):
        model = nnx.Linear(x.shape[-1], int(features), rngs=rngs)
        outs.append(model(jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk, axis=0)))
    return jnp.concatenate(outs, axis=0).reshape(-1)


def nnx_shard_map(seed, x, mesh, features):
    axis = mesh.axis_names[0]
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))
    spec = PartitionSpec(axis)
    return jax.shard_map(lambda y: model(y).reshape(-1), mesh=mesh, in_specs=spec, out_specs=spec)(
        x
    )
