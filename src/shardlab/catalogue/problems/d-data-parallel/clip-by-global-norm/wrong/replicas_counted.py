# WA: adds up over all devices, although some of them hold copies
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def clip(grads, specs, max_norm, mesh):
    def per_shard(grads):
        total = sum(jnp.sum(g * g) for g in grads.values())
        norm = jnp.sqrt(jax.lax.psum(total, mesh.axis_names))
        scale = jnp.minimum(1.0, max_norm / norm)
        return {name: g * scale for name, g in grads.items()}, norm

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()))(grads)
