# WA: uses a label as an index into the local columns, as if they were the vocabulary
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def vocab_ce(logits, labels, mesh):
    axis = mesh.axis_names[0]

    def per_shard(logits, labels):
        maximum = jax.lax.pmax(jax.lax.stop_gradient(logits.max(axis=1)), axis)
        total = jax.lax.psum(jnp.exp(logits - maximum[:, None]).sum(axis=1), axis)

        label_logit = jax.lax.pmean(logits[jnp.arange(len(labels)), labels], axis)
        return jnp.log(total) + maximum - label_logit

    return jax.shard_map(per_shard, mesh=mesh, in_specs=(P(None, axis), P()), out_specs=P())(
        logits, labels
    )
