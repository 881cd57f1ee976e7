import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_dropout(key, x, p, mesh):
    """Return x with elements dropped with probability p and the rest divided by 1 - p."""
    axis = mesh.axis_names[0]

    def per_shard(key, x):
        # The key is the same on every device, and equal keys give equal numbers. Fold in the
        # coordinate along the mesh axis to get a different key on each device.
        device_key = jax.random.fold_in(key, jax.lax.axis_index(axis))
        mask = jax.random.bernoulli(device_key, 1 - p, x.shape)
        return jnp.where(mask, x / (1 - p), 0.0)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(), P(axis)), out_specs=P(axis))(key, x)


def dp_dropout_steps(keys, x, p, mesh):
    """Return one result for each key."""
    return [dp_dropout(key, x, p, mesh) for key in keys]
