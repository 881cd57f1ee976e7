# COMM: psum sends every row to every device, which then discards most of them
import jax
from jax.sharding import PartitionSpec


def matmul_rs(a, b, mesh):
    axis = mesh.axis_names[0]

    def matmul(a, b):
        total = jax.lax.psum(a @ b, axis)
        size = total.shape[0] // mesh.shape[axis]
        return jax.lax.dynamic_slice_in_dim(total, jax.lax.axis_index(axis) * size, size, axis=0)

    return jax.shard_map(
        matmul,
        mesh=mesh,
        in_specs=(PartitionSpec(None, axis), PartitionSpec(axis, None)),
        out_specs=PartitionSpec(axis, None),
    )(a, b)
