# VMA: each device clips by the norm of its own shards
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def clip(grads, specs, max_norm, mesh):
    def per_shard(grads):
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in grads.values()))
        scale = jnp.minimum(1.0, max_norm / norm)
        return {name: g * scale for name, g in grads.items()}, norm

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(specs,), out_specs=(specs, P()))(grads)
