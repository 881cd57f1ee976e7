# WA: applies relu once, after the last layer
import jax
from jax.sharding import PartitionSpec as P


def fsdp_forward(w_shards, x, mesh):
    axis = mesh.axis_names[0]

    def per_shard(w_shards, x):
        def layer(x, w_shard):
            w = jax.lax.all_gather(w_shard, axis, tiled=True)
            return x @ w, None

        x, _ = jax.lax.scan(layer, x, w_shards)
        return jax.nn.relu(x)

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(None, axis), P(axis)), out_specs=P(axis)
    )(w_shards, x)
