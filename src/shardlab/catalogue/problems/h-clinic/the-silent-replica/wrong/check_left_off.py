# API: both results are right, and the next mistake will not be noticed either
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def summary(x, mesh):
    axis = mesh.axis_names[0]

    def body(piece):
        everything = jax.lax.all_gather(piece, axis, tiled=True)
        return {"sorted": jnp.sort(everything), "mean": jax.lax.pmean(jnp.mean(piece), axis)}

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P(), check_vma=False)(x)
