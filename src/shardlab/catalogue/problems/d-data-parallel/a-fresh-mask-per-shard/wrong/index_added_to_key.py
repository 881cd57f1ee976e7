# WA: the mask of a device is that of the previous device with the next key
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_dropout(key, x, p, mesh):
    axis = mesh.axis_names[0]

    def per_shard(key, x):
        seed = jax.random.key_data(key)[1]
        device_key = jax.random.key(seed + jax.lax.axis_index(axis).astype(seed.dtype))
        mask = jax.random.bernoulli(device_key, 1 - p, x.shape)
        return jnp.where(mask, x / (1 - p), 0.0)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(), P(axis)), out_specs=P(axis))(key, x)


def dp_dropout_steps(keys, x, p, mesh):
    return [dp_dropout(key, x, p, mesh) for key in keys]
