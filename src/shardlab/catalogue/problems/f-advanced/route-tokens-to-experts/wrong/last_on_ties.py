# WA: chooses the last one of the experts with the highest score
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def moe(x, gate, w, capacity, mesh):
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]

    def per_shard(x, gate, w):
        scores = x @ gate
        expert = n - 1 - scores[:, ::-1].argmax(axis=1)
        weight = jax.nn.softmax(scores).max(axis=1)
        expert_one_hot = jax.nn.one_hot(expert, n, dtype=jnp.int32)
        slot = (expert_one_hot * (expert_one_hot.cumsum(axis=0) - 1)).sum(axis=1)
        is_routed = slot < capacity

        buffer = jnp.zeros((n, capacity, x.shape[1])).at[expert, slot].set(x, mode="drop")
        expert_inputs = jax.lax.all_to_all(buffer, axis, 0, 0, tiled=True)
        outputs = jax.lax.all_to_all(expert_inputs @ w[0], axis, 0, 0, tiled=True)
        y = outputs[expert, jnp.minimum(slot, capacity - 1)]
        return jnp.where(is_routed[:, None], weight[:, None] * y, 0.0)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(axis), P(), P(axis)), out_specs=P(axis))(
        x, gate, w
    )
