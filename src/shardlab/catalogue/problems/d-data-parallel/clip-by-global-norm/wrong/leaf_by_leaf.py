# WA: clips every leaf by its own norm, which changes the direction of the gradient
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def clip(grads, specs, max_norm, mesh):
    def per_shard(grads):
        clipped, total = {}, 0.0
        for name, g in grads.items():
            shard_axes = [axis for entry in specs[name] if entry for axis in _axis_names(entry)]
            squares = jnp.sum(g * g)
            squares = jax.lax.psum(squares, shard_axes) if shard_axes else squares
            clipped[name] = g * jnp.minimum(1.0, max_norm / jnp.sqrt(squares))
            total += squares
        return clipped, jnp.sqrt(total)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()))(grads)


def _axis_names(entry):
    return entry if isinstance(entry, tuple) else (entry,)
