# COMM: pads with zeros and all-reduces, which sends twice as much as an all-gather
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def adam_shard(params, grads, m, v, t, mesh):
    axis = mesh.axis_names[0]

    def per_shard(p, g, m, v):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        p = p - 0.1 * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        start = jax.lax.axis_index(axis) * len(p)
        buffer = jnp.zeros((len(p) * jax.lax.axis_size(axis), *p.shape[1:]))
        buffer = jax.lax.dynamic_update_slice_in_dim(buffer, p, start, axis=0)
        return jax.lax.psum(buffer, axis), m, v

    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=(P(), P(axis), P(axis)))(
        params, grads, m, v
    )
