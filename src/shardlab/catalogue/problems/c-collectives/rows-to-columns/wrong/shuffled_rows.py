# WA: the blocks come from a reshape that groups the wrong elements
import jax
from jax.sharding import PartitionSpec


def swap_axis(x, mesh):
    axis = mesh.axis_names[0]

    def swap(y):
        n, (rows, cols) = mesh.shape[axis], y.shape
        blocks = y.reshape(n, rows, cols // n)  # right: reshape(rows, n, cols // n), dim 1
        return jax.lax.all_to_all(blocks, axis, split_axis=0, concat_axis=0).reshape(-1, cols // n)

    return jax.shard_map(
        swap,
        mesh=mesh,
        in_specs=PartitionSpec(axis, None),
        out_specs=PartitionSpec(None, axis),
    )(x)
