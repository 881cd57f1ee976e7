# WA: clips the label into each piece, and so every device adds some logit
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def vocab_ce(logits, labels, mesh):
    axis = mesh.axis_names[0]

    def per_shard(logits, labels):
        largest = jax.lax.pmax(jax.lax.stop_gradient(logits.max(axis=1)), axis)
        total = jax.lax.psum(jnp.exp(logits - largest[:, None]).sum(axis=1), axis)

        own = labels - jax.lax.axis_index(axis) * logits.shape[1]
        own = jnp.clip(own, 0, logits.shape[1] - 1)
        of_label = jax.lax.psum(logits[jnp.arange(len(labels)), own], axis)
        return jnp.log(total) + largest - of_label

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(None, axis), P()), out_specs=P())(
        logits, labels
    )
