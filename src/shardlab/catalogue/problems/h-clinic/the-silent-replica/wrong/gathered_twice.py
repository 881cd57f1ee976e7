# COMM: the mean is made from a second gather, where one number per device would do
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def summary(x, mesh):
    axis = mesh.axis_names[0]

    def body(piece):
        everything = jax.lax.all_gather(piece, axis, tiled=True, to="invarying")
        again = jax.lax.all_gather(piece * 1.0, axis, to="invarying")
        return {"sorted": jnp.sort(everything), "mean": jnp.mean(again)}

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
