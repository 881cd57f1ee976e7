import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def clip(grads, specs, max_norm, mesh):
    """Return the gradients, scaled down where their global norm is above max_norm, and the norm."""

    def per_shard(grads):
        total = 0.0
        for name, g in grads.items():
            squares = jnp.sum(g * g)
            # Over a mesh axis that is in the spec, devices hold different elements: add them up.
            # Over any other they hold the same ones, which are counted already.
            split_over = [axis for entry in specs[name] if entry for axis in _names(entry)]
            total += jax.lax.psum(squares, split_over) if split_over else squares
        norm = jnp.sqrt(total)
        scale = jnp.minimum(1.0, max_norm / norm)
        return {name: g * scale for name, g in grads.items()}, norm

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()))(grads)


def _names(entry):
    return entry if isinstance(entry, tuple) else (entry,)
