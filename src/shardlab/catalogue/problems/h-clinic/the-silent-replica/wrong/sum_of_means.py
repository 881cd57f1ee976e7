# WA factor_of_n: the means of the pieces are added up, and not averaged
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def summary(x, mesh):
    axis = mesh.axis_names[0]

    def body(piece):
        everything = jax.lax.all_gather(piece, axis, tiled=True, to="invarying")
        return {"sorted": jnp.sort(everything), "mean": jax.lax.psum(jnp.mean(piece), axis)}

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
