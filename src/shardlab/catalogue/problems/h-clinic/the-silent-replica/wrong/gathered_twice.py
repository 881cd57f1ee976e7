# COMM: the mean comes from a second all-gather, although one number per device is enough
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def summary(x, mesh):
    axis = mesh.axis_names[0]

    def body(shard):
        all_elements = jax.lax.all_gather(shard, axis, tiled=True, to="invarying")
        second_copy = jax.lax.all_gather(shard * 1.0, axis, to="invarying")
        return {"sorted": jnp.sort(all_elements), "mean": jnp.mean(second_copy)}

    return jax.shard_map(body, mesh=mesh, in_specs=P(axis), out_specs=P())(x)
