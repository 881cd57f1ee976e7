# WA: subtracts the first logit of the row, and the others can be 200 larger
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def vocab_ce(logits, labels, mesh):
    axis = mesh.axis_names[0]

    def per_shard(logits, labels):
        maximum = jax.lax.psum(jnp.where(jax.lax.axis_index(axis) == 0, logits[:, 0], 0.0), axis)
        total = jax.lax.psum(jnp.exp(logits - maximum[:, None]).sum(axis=1), axis)

        start = jax.lax.axis_index(axis) * logits.shape[1]
        is_label = start + jnp.arange(logits.shape[1]) == labels[:, None]
        label_logit = jax.lax.psum(jnp.where(is_label, logits, 0.0).sum(axis=1), axis)
        return jnp.log(total) + maximum - label_logit

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(None, axis), P()), out_specs=P())(
        logits, labels
    )
