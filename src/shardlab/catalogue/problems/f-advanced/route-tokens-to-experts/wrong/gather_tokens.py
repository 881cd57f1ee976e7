# COMM: sends all tokens to all experts, and sums the outputs for the tokens of each
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def moe(x, gate, w, capacity, mesh):
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]

    def per_shard(x, gate, w):
        scores = x @ gate
        expert, weight = scores.argmax(axis=1), jax.nn.softmax(scores).max(axis=1)
        expert_one_hot = jax.nn.one_hot(expert, n, dtype=jnp.int32)
        slot = (expert_one_hot * (expert_one_hot.cumsum(axis=0) - 1)).sum(axis=1)
        weight = jnp.where(slot < capacity, weight, 0.0)
        x, expert, weight = jax.lax.all_gather((x, expert, weight), axis, tiled=True)
        local_weight = jnp.where(expert == jax.lax.axis_index(axis), weight, 0.0)
        return jax.lax.psum_scatter(local_weight[:, None] * (x @ w[0]), axis, tiled=True)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(axis), P(), P(axis)), out_specs=P(axis))(
        x, gate, w
    )
