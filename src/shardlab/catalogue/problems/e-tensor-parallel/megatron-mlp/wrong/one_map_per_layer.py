# API: each layer has a shard_map of its own
import jax
from jax.sharding import PartitionSpec as P


def tp_mlp(x, w1, b1, w2, b2, mesh):
    axis = mesh.axis_names[0]
    hidden = jax.shard_map(
        lambda x, w1, b1: jax.nn.relu(x @ w1 + b1),
        mesh=mesh,
        in_specs=(P(), P(None, axis), P(axis)),
        out_specs=P(None, axis),
    )(x, w1, b1)
    return jax.shard_map(
        lambda hidden, w2, b2: jax.lax.psum(hidden @ w2, axis) + b2,
        mesh=mesh,
        in_specs=(P(None, axis), P(axis, None), P()),
        out_specs=P(),
    )(hidden, w2, b2)
