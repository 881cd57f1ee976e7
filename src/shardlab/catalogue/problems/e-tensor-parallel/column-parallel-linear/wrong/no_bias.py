# WA: returns x @ w without the bias
import jax
from jax.sharding import PartitionSpec as P


def col_linear(x, w, b, mesh):
    axis = mesh.axis_names[0]

    def per_shard(x, w, b):
        return x @ w

    return jax.shard_map(
        per_shard,
        mesh=mesh,
        in_specs=(P(), P(None, axis), P(axis)),
        out_specs=P(None, axis),
    )(x, w, b)
