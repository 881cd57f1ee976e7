import jax
from jax.sharding import PartitionSpec as P


def tp_mlp(x, w1, b1, w2, b2, mesh):
    """Return relu(x @ w1 + b1) @ w2 + b2, the same on every device."""
    axis = mesh.axis_names[0]

    def per_shard(x, w1, b1, w2, b2):
        # These hidden units are complete: relu can be applied, and no other device needs them.
        hidden = jax.nn.relu(x @ w1 + b1)
        # Their contribution to the result is one term of a sum over all hidden units.
        return jax.lax.psum(hidden @ w2, axis) + b2

    return jax.shard_map(
        per_shard,
        mesh=mesh,
        in_specs=(P(), P(None, axis), P(axis), P(axis, None), P()),
        out_specs=P(),
    )(x, w1, b1, w2, b2)
