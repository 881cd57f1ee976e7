# WA: masks every block by positions within the block, as if it were the first
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def ring_attn(q, k, v, causal, mesh):
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]
    ring = [(i, (i + 1) % n) for i in range(n)]

    def per_shard(q, k, v):
        length, dim = q.shape
        here = jax.lax.axis_index(axis)

        def attend(sums, k, v, block):
            largest, weight, value = sums
            scores = q @ k.T / jnp.sqrt(dim)
            if causal:
                at = jnp.arange(length)
                mask = at[:, None] >= at
                scores = jnp.where(mask, scores, -jnp.inf)
            new = jnp.maximum(largest, scores.max(axis=1))
            old = jnp.exp(largest - new)
            p = jnp.exp(scores - new[:, None])
            return new, weight * old + p.sum(axis=1), value * old[:, None] + p @ v

        def step(carry, number):
            sums, k, v = carry
            k, v = jax.lax.ppermute((k, v), axis, ring)
            return (attend(sums, k, v, (here - number) % n), k, v), None

        nothing = (jnp.full(length, -jnp.inf), jnp.zeros(length), jnp.zeros((length, v.shape[1])))
        sums = attend(nothing, k, v, here)
        ((_, weight, value), _, _), _ = jax.lax.scan(step, (sums, k, v), jnp.arange(1, n))
        return value / weight[:, None]

    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=P(axis))(q, k, v)
