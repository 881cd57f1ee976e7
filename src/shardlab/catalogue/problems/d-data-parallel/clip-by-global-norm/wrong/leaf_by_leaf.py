# WA: clips every leaf by its own norm, which turns the gradient in another direction
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def clip(grads, specs, max_norm, mesh):
    def per_shard(grads):
        clipped, total = {}, 0.0
        for name, g in grads.items():
            split_over = [axis for entry in specs[name] if entry for axis in _names(entry)]
            squares = jnp.sum(g * g)
            squares = jax.lax.psum(squares, split_over) if split_over else squares
            clipped[name] = g * jnp.minimum(1.0, max_norm / jnp.sqrt(squares))
            total += squares
        return clipped, jnp.sqrt(total)

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()))(grads)


def _names(entry):
    return entry if isinstance(entry, tuple) else (entry,)
