# WA: adds column j of every shard, although these are different columns of the result
import jax
from jax.sharding import PartitionSpec as P


def col_linear(x, w, b, mesh):
    axis = mesh.axis_names[0]

    def per_shard(x, w, b):
        return jax.lax.psum(x @ w, axis) + b

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(), P(None, axis), P(axis)), out_specs=P(None, axis)
    )(x, w, b)
