# WA: scales gradients with a small norm up to max_norm
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def clip(grads, specs, max_norm, mesh):

    def per_shard(grads):
        total = 0.0
        for name, g in grads.items():
            squares = jnp.sum(g * g)
            shard_axes = [axis for entry in specs[name] if entry for axis in _axis_names(entry)]
            total += jax.lax.psum(squares, shard_axes) if shard_axes else squares
        norm = jnp.sqrt(total)
        scale = max_norm / norm
        return {name: g * scale for name, g in grads.items()}, norm

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()))(grads)


def _axis_names(entry):
    return entry if isinstance(entry, tuple) else (entry,)
