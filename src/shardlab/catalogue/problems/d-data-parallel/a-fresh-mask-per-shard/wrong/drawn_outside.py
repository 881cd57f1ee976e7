# API: the mask of the full batch is drawn outside of the shard_map
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_dropout(key, x, p, mesh):
    axis = mesh.axis_names[0]
    mask = jax.random.bernoulli(key, 1 - p, x.shape)

    def per_shard(mask, x):
        return jnp.where(mask, x / (1 - p), 0.0)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(axis), P(axis)), out_specs=P(axis))(
        mask, x
    )


def dp_dropout_steps(keys, x, p, mesh):
    return [dp_dropout(key, x, p, mesh) for key in keys]
