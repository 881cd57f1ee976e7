import jax
from jax.sharding import PartitionSpec as P


def row_linear(x, w, b, mesh):
    """Return x @ w + b, replicated, from x and w sharded along the inner dimension."""
    axis = mesh.axis_names[0]

    def per_shard(x, w, b):
        # Each device has some terms of every sum: a matrix of the full shape. psum adds them up.
        y = jax.lax.psum(x @ w, axis)
        # The bias is not a term of the sum. Added here, it is added once.
        return y + b

    return jax.shard_map(
        per_shard,
        mesh=mesh,
        in_specs=(P(None, axis), P(axis, None), P()),
        out_specs=P(),
    )(x, w, b)
