# WA: averages the softmaxes of the blocks, whatever their weight
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def ring_attn(q, k, v, causal, mesh):
    axis = mesh.axis_names[0]
    n = mesh.shape[axis]
    ring = [(i, (i + 1) % n) for i in range(n)]

    def per_shard(q, k, v):
        length, dim = q.shape
        device = jax.lax.axis_index(axis)

        def attend(sums, k, v, block):
            blocks, value = sums
            scores = q @ k.T / jnp.sqrt(dim)
            if causal:
                positions = jnp.arange(length)
                mask = (device * length + positions)[:, None] >= block * length + positions
                scores = jnp.where(mask, scores, -jnp.inf)
            # A fully masked block has no softmax and is left out of the mean.
            is_visible = jnp.isfinite(scores.max(axis=1))
            p = jnp.where(is_visible[:, None], jax.nn.softmax(scores), 0.0)
            return blocks + is_visible, value + p @ v

        def step(carry, shift):
            sums, k, v = carry
            k, v = jax.lax.ppermute((k, v), axis, ring)
            return (attend(sums, k, v, (device - shift) % n), k, v), None

        initial_sums = (jnp.zeros(length), jnp.zeros((length, v.shape[1])))
        sums = attend(initial_sums, k, v, device)
        ((blocks, value), _, _), _ = jax.lax.scan(step, (sums, k, v), jnp.arange(1, n))
        return value / blocks[:, None]

    return jax.shard_map(per_shard, mesh=mesh, in_specs=P(axis), out_specs=P(axis))(q, k, v)
