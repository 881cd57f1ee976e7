import jax
from jax.sharding import PartitionSpec


def matmul_rs(a, b, mesh):
    """Return a @ b sharded by rows; the inner dimension of a and b arrives sharded."""
    axis = mesh.axis_names[0]

    def matmul(a, b):
        # a @ b has the full shape and is one term of the sum; each device keeps only its own rows.
        return jax.lax.psum_scatter(a @ b, axis, scatter_dimension=0, tiled=True)

    return jax.shard_map(
        matmul,
        mesh=mesh,
        in_specs=(PartitionSpec(None, axis), PartitionSpec(axis, None)),
        out_specs=PartitionSpec(axis, None),
    )(a, b)
