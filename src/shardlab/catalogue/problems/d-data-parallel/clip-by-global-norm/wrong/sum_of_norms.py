# WA: adds up square roots instead of taking the square root of the sum
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def clip(grads, specs, max_norm, mesh):
    def per_shard(grads):
        norm = 0.0
        for name, g in grads.items():
            leaf_norm = jnp.sqrt(jnp.sum(g * g))
            shard_axes = [axis for entry in specs[name] if entry for axis in _axis_names(entry)]
            norm += jax.lax.psum(leaf_norm, shard_axes) if shard_axes else leaf_norm
        scale = jnp.minimum(1.0, max_norm / norm)
        return {name: g * scale for name, g in grads.items()}, norm

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()))(grads)


def _axis_names(entry):
    return entry if isinstance(entry, tuple) else (entry,)
