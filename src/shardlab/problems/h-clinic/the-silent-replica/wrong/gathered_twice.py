# COMM: the mean comes from a second all-gather, although one number per device is enough
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def summary(x, mesh):
    axis = mesh.axis_names[0]

    def body(shard):
        gathered = jax.lax.all_gather(shard, axis, tiled=True, to="invarying")
        gathered_again = jax.lax.all_gather(shard * 1.0, axis, to="invarying")
        return {"sorted": jnp.sort(gathered), "mean": jnp.mean(gathered_again)}

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
