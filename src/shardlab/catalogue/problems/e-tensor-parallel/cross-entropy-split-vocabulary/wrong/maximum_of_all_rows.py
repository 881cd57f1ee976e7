# WA: subtracts the maximum of all rows, and a row far below it becomes 0
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def vocab_ce(logits, labels, mesh):
    axis = mesh.axis_names[0]

    def per_shard(logits, labels):
        maximum = jax.lax.pmax(jax.lax.stop_gradient(logits.max()), axis)
        total = jax.lax.psum(jnp.exp(logits - maximum).sum(axis=1), axis)

        start = jax.lax.axis_index(axis) * logits.shape[1]
        is_label = start + jnp.arange(logits.shape[1]) == labels[:, None]
        label_logit = jax.lax.psum(jnp.where(is_label, logits, 0.0).sum(axis=1), axis)
        return jnp.log(total) + maximum - label_logit

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(None, axis), P()), out_specs=P())(
        logits, labels
    )
