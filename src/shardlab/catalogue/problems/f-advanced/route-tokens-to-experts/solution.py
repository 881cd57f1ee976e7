import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def moe(x, gate, w, capacity, mesh):
    """Return each token after its best expert, weighted; 0 where the expert had no room."""
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]

    def per_shard(x, gate, w):
        scores = x @ gate
        expert = scores.argmax(axis=1)
        weight = jax.nn.softmax(scores).max(axis=1)
        # Place in the queue of the token's expert: how many tokens before it chose the same one.
        chosen = jax.nn.one_hot(expert, n, dtype=jnp.int32)
        place = (chosen * (chosen.cumsum(axis=0) - 1)).sum(axis=1)
        has_room = place < capacity

        # Row e of the buffer goes to device e. A place beyond the end is dropped.
        buffer = jnp.zeros((n, capacity, x.shape[1])).at[expert, place].set(x, mode="drop")
        arrived = jax.lax.all_to_all(buffer, axis, 0, 0, tiled=True)
        # Row r has come from device r. all_to_all is its own inverse: the same call sends row r
        # back, and every result lies where its token lay.
        made = jax.lax.all_to_all(arrived @ w[0], axis, 0, 0, tiled=True)
        y = made[expert, jnp.minimum(place, capacity - 1)]
        return jnp.where(has_room[:, None], weight[:, None] * y, 0.0)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(axis), P(), P(axis)), out_specs=P(axis))(
        x, gate, w
    )
