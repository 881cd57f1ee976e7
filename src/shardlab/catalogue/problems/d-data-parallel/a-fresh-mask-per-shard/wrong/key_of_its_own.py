# WA: the mask comes from a hard-coded key, so every step drops the same elements
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_dropout(key, x, p, mesh):
    axis = mesh.axis_names[0]

    def per_shard(x):
        device_key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index(axis))
        mask = jax.random.bernoulli(device_key, 1 - p, x.shape)
        return jnp.where(mask, x / (1 - p), 0.0)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=P(axis))(x)


def dp_dropout_steps(keys, x, p, mesh):
    return [dp_dropout(key, x, p, mesh) for key in keys]
