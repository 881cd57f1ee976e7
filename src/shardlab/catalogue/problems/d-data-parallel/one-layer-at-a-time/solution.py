import jax
from jax.sharding import PartitionSpec as P


def fsdp_forward(w_shards, x, mesh):
    """Return x after all layers, x = relu(x @ w), gathering one full layer at a time."""
    axis = mesh.axis_names[0]

    def per_shard(w_shards, x):
        def layer(x, w_shard):
            # Gathered for this scan step only: the next step reuses the memory.
            w = jax.lax.all_gather(w_shard, axis, tiled=True)
            return jax.nn.relu(x @ w), None

        x, _ = jax.lax.scan(layer, x, w_shards)
        return x

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(None, axis), P(axis)), out_specs=P(axis)
    )(w_shards, x)
