# SPEC: splits the rows, which are not divisible once more, and concatenates the columns
import jax
from jax.sharding import PartitionSpec


def swap_axis(x, mesh):
    axis = mesh.axis_names[0]

    def swap(y):
        return jax.lax.all_to_all(y, axis, split_axis=0, concat_axis=1, tiled=True)

    return jax.shard_map(
        swap,
        mesh=mesh,
        in_specs=PartitionSpec(axis, None),
        out_specs=PartitionSpec(None, axis),
    )(x)
