# COMM: gathers the moments, and every device updates everything
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def adam_shard(params, grads, m, v, t, mesh):
    axis = mesh.axis_names[0]

    def per_shard(p, g, m, v):
        rows = m.shape[0]
        m = jax.lax.all_gather(m, axis, tiled=True, to="invarying")
        v = jax.lax.all_gather(v, axis, tiled=True, to="invarying")
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        p = p - 0.1 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        start = jax.lax.axis_index(axis) * rows
        m = jax.lax.dynamic_slice_in_dim(m, start, rows)
        v = jax.lax.dynamic_slice_in_dim(v, start, rows)
        return p, m, v

    return jax.shard_map(
        per_shard,
        mesh=mesh,
        in_specs=(P(), P(), P(axis), P(axis)),
        out_specs=(P(), P(axis), P(axis)),
    )(params, grads, m, v)
