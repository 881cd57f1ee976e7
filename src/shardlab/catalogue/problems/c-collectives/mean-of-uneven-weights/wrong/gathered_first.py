# COMM: in_specs asks for all of x and w on every device
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def weighted_mean(x, w, mesh):
    axis = mesh.axis_names[0]

    def mean(x, w):
        return jnp.sum(w * x) / jnp.sum(w)

    spec = PartitionSpec()
    return jax.shard_map(mean, mesh=mesh, in_specs=(spec, spec), out_specs=spec)(x, w)
