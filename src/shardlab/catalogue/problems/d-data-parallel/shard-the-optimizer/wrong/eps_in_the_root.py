# WA: adds eps before the square root, so eps counts as 1e-4
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def adam_shard(params, grads, m, v, t, mesh):
    axis = mesh.axis_names[0]

    def per_shard(p, g, m, v):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        p = p - 0.1 * (m / (1 - 0.9**t)) / jnp.sqrt(v / (1 - 0.999**t) + 1e-8)
        return jax.lax.all_gather(p, axis, tiled=True, to="invarying"), m, v

    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=(P(), P(axis), P(axis)))(
        params, grads, m, v
    )
