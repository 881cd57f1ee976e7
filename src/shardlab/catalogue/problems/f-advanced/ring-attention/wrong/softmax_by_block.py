# WA: averages the blocks' softmaxes, whatever their weight
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
            blocks, value = sums
            scores = q @ k.T / jnp.sqrt(dim)
            if causal:
                at = jnp.arange(length)
                mask = (here * length + at)[:, None] >= block * length + at
                scores = jnp.where(mask, scores, -jnp.inf)
            # A block that is masked altogether has no softmax, and is left out of the mean.
            is_seen = jnp.isfinite(scores.max(axis=1))
            p = jnp.where(is_seen[:, None], jax.nn.softmax(scores), 0.0)
            return blocks + is_seen, value + p @ v

        def step(carry, number):
            sums, k, v = carry
            k, v = jax.lax.ppermute((k, v), axis, ring)
            return (attend(sums, k, v, (here - number) % n), k, v), None

        nothing = (jnp.zeros(length), jnp.zeros((length, v.shape[1])))
        sums = attend(nothing, k, v, here)
        ((blocks, value), _, _), _ = jax.lax.scan(step, (sums, k, v), jnp.arange(1, n))
        return value / blocks[:, None]

    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=P(axis))(q, k, v)
