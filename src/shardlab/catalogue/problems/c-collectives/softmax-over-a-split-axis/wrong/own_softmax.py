# WA: each device makes its own columns add up to 1
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def softmax_cols(x, mesh):
    axis = mesh.axis_names[0]

    def softmax(y):
        return jax.nn.softmax(y, axis=1)

    spec = PartitionSpec(None, axis)
    return jax.shard_map(softmax, mesh=mesh, in_specs=spec, out_specs=spec)(x)
