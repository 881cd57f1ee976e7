import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def adam_shard(params, grads, m, v, t, mesh):
    """Return params, m and v after step t of Adam; m and v are sharded over the first mesh axis."""
    axis = mesh.axis_names[0]

    def per_shard(p, g, m, v):
        # All four hold the rows of this device: no other device updates them.
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        p = p - 0.1 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        # Send the updated rows to every device: the only communication.
        return jax.lax.all_gather(p, axis, tiled=True, to="invarying"), m, v

    # params and grads are replicated. P(axis) takes the rows of this device, without
    # communication.
    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=(P(), P(axis), P(axis)))(
        params, grads, m, v
    )
