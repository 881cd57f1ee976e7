import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def softmax_cols(x, mesh):
    """Return softmax of each row of x, whose columns are sharded over the first mesh axis."""
    axis = mesh.axis_names[0]

    def softmax(y):
        return jax.nn.softmax(y, axis=1)  # of the columns on this device only

    spec = PartitionSpec(None, axis)
    return jax.shard_map(softmax, mesh=mesh, in_specs=spec, out_specs=spec)(x)
