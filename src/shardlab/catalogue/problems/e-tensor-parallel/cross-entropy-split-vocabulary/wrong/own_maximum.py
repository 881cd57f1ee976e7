# WA: each device scales its sum by its local maximum, and the sums do not add up
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def vocab_ce(logits, labels, mesh):
    axis = mesh.axis_names[0]

    def per_shard(logits, labels):
        local_maximum = logits.max(axis=1)
        total = jax.lax.psum(jnp.exp(logits - local_maximum[:, None]).sum(axis=1), axis)
        maximum = jax.lax.pmax(local_maximum, axis)

        start = jax.lax.axis_index(axis) * logits.shape[1]
        is_label = start + jnp.arange(logits.shape[1]) == labels[:, None]
        label_logit = jax.lax.psum(jnp.where(is_label, logits, 0.0).sum(axis=1), axis)
        return jnp.log(total) + maximum - label_logit

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(None, axis), P()), out_specs=P())(
        logits, labels
    )
