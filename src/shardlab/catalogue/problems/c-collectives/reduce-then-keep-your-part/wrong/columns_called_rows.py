# SHAPE: the sum is scattered over the columns and concatenated along the rows
import jax
from jax.sharding import PartitionSpec


def matmul_rs(a, b, mesh):
    axis = mesh.axis_names[0]

    def matmul(a, b):
        return jax.lax.psum_scatter(a @ b, axis, scatter_dimension=1, tiled=True)

    return jax.shard_map(
        matmul,
        mesh=mesh,
        in_specs=(PartitionSpec(None, axis), PartitionSpec(axis, None)),
        out_specs=PartitionSpec(axis, None),
    )(a, b)
