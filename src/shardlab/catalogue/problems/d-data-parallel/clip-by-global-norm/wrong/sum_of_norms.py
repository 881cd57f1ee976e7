# WA: adds up roots, and the root of a sum is not the sum of roots
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def clip(grads, specs, max_norm, mesh):
    def per_shard(grads):
        norm = 0.0
        for name, g in grads.items():
            own = jnp.sqrt(jnp.sum(g * g))
            split_over = [axis for entry in specs[name] if entry for axis in _names(entry)]
            norm += jax.lax.psum(own, split_over) if split_over else own
        scale = jnp.minimum(1.0, max_norm / norm)
        return {name: g * scale for name, g in grads.items()}, norm

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()))(grads)


def _names(entry):
    return entry if isinstance(entry, tuple) else (entry,)
