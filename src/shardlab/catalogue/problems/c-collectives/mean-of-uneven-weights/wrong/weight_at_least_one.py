# WA: the sum of the weights is replaced by 1 if it is smaller
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def weighted_mean(x, w, mesh):
    axis = mesh.axis_names[0]

    def mean(x, w):
        total, weight = jax.lax.psum((jnp.sum(w * x), jnp.sum(w)), axis)
        return total / jnp.maximum(weight, 1.0)

    spec = PartitionSpec(axis)
    return jax.shard_map(mean, mesh=mesh, in_specs=(spec, spec), out_specs=PartitionSpec())(x, w)
