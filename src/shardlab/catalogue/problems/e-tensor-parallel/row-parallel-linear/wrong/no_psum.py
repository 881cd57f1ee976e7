# VMA: the terms of one device are declared to be the full sum, and JAX cannot prove it
import jax
from jax.sharding import PartitionSpec as P


def row_linear(x, w, b, mesh):
    axis = mesh.axis_names[0]

    def per_shard(x, w, b):
        return x @ w + b

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(None, axis), P(axis, None), P()), out_specs=P()
    )(x, w, b)
