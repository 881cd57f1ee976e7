import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def ring_attn(q, k, v, causal, mesh):
    """Return softmax(q @ k.T / sqrt(dim)) @ v with the sequence split over the first mesh axis."""
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]
    ring = [(i, (i + 1) % n) for i in range(n)]

    def per_shard(q, k, v):
        length, dim = q.shape
        here = jax.lax.axis_index(axis)

        def attend(sums, k, v, block):
            """Add one block of keys and values to what has been summed up so far."""
            largest, weight, value = sums
            scores = q @ k.T / jnp.sqrt(dim)
            if causal:
                # Positions in the whole sequence: queries are ours, keys belong to the block.
                at = jnp.arange(length)
                mask = (here * length + at)[:, None] >= block * length + at
                scores = jnp.where(mask, scores, -jnp.inf)
            new = jnp.maximum(largest, scores.max(axis=1))
            # The sums so far are relative to the old maximum: bring them to the new one.
            old = jnp.exp(largest - new)
            p = jnp.exp(scores - new[:, None])
            return new, weight * old + p.sum(axis=1), value * old[:, None] + p @ v

        def step(carry, number):
            sums, k, v = carry
            k, v = jax.lax.ppermute((k, v), axis, ring)
            # After s steps forward, the block that is here started s devices back.
            return (attend(sums, k, v, (here - number) % n), k, v), None

        # Our own block first: in it every query sees at least itself, so that the maximum is
        # finite from here on.
        nothing = (jnp.full(length, -jnp.inf), jnp.zeros(length), jnp.zeros((length, v.shape[1])))
        sums = attend(nothing, k, v, here)
        ((_, weight, value), _, _), _ = jax.lax.scan(step, (sums, k, v), jnp.arange(1, n))
        return value / weight[:, None]

    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=P(axis))(q, k, v)
