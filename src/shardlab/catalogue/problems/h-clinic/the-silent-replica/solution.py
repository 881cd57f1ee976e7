import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def summary(x, mesh):
    """Return all elements in order, and their mean; both whole on every device."""
    axis = mesh.axis_names[0]

    def body(piece):
        # Gathered is the same everywhere, and to="invarying" lets JAX know it.
        everything = jax.lax.all_gather(piece, axis, tiled=True, to="invarying")
        # The mean of a piece is not: this is what the check had been asking about.
        return {"sorted": jnp.sort(everything), "mean": jax.lax.pmean(jnp.mean(piece), axis)}

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
