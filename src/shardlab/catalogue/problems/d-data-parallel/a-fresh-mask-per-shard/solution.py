import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_dropout(key, x, p, mesh):
    """Return x with each element dropped with probability p, and the others divided by 1 - p."""
    axis = mesh.axis_names[0]

    def per_shard(key, x):
        # The key is the same on every device, and equal keys give equal numbers. The place on the
        # mesh axis makes another key of it on each.
        own = jax.random.fold_in(key, jax.lax.axis_index(axis))
        kept = jax.random.bernoulli(own, 1 - p, x.shape)
        return jnp.where(kept, x / (1 - p), 0.0)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(), P(axis)), out_specs=P(axis))(key, x)


def dp_dropout_steps(keys, x, p, mesh):
    """Return one result for each key."""
    return [dp_dropout(key, x, p, mesh) for key in keys]
