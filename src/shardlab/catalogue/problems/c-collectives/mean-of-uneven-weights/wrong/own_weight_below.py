# VMA: the total of all devices is divided by the weight of one device
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def weighted_mean(x, w, mesh):
    axis = mesh.axis_names[0]

    def mean(x, w):
        return jax.lax.psum(jnp.sum(w * x), axis) / jnp.sum(w)

    spec = PartitionSpec(axis)
    return jax.shard_map(mean, mesh=mesh, in_specs=(spec, spec), out_specs=PartitionSpec())(x, w)
