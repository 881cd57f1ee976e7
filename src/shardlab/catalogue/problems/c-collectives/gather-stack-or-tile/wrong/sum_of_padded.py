# COMM: each device pads its rows with zeros, and psum sends twice as many bytes
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def gather_rows(x, mesh):
    axis = mesh.axis_names[0]

    def gather(y):
        start = jax.lax.axis_index(axis) * y.shape[0]
        buffer = jnp.zeros(x.shape, y.dtype)
        buffer = jax.lax.pcast(buffer, axis, to="varying")
        return jax.lax.psum(jax.lax.dynamic_update_slice_in_dim(buffer, y, start, axis=0), axis)

    return jax.shard_map(
        gather, mesh=mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec()
    )(x)
