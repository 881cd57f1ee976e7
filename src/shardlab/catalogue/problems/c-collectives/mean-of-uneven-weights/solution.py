import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def weighted_mean(x, w, mesh):
    """Return sum(w * x) / sum(w) over all elements, the same on every device."""
    axis = mesh.axis_names[0]

    def mean(x, w):
        # Sums add up over devices, means do not: reduce both sums, then divide once.
        total, weight = jax.lax.psum((jnp.sum(w * x), jnp.sum(w)), axis)
        return total / weight

    spec = PartitionSpec(axis)
    return jax.shard_map(mean, mesh=mesh, in_specs=(spec, spec), out_specs=PartitionSpec())(x, w)
