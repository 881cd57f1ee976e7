# COMM: every device fetches the whole array to keep a part of it
import jax
from jax.sharding import PartitionSpec


def swap_axis(x, mesh):
    axis = mesh.axis_names[0]

    def swap(y):
        whole = jax.lax.all_gather(y, axis, axis=0, tiled=True)
        size = whole.shape[1] // mesh.shape[axis]
        return jax.lax.dynamic_slice_in_dim(whole, jax.lax.axis_index(axis) * size, size, axis=1)

    return jax.shard_map(
        swap,
        mesh=mesh,
        in_specs=PartitionSpec(axis, None),
        out_specs=PartitionSpec(None, axis),
    )(x)
