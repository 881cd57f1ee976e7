import jax
from jax.sharding import PartitionSpec as P


def fsdp_forward(w_shards, x, mesh):
    """Return x after all layers, x = relu(x @ w), with one whole layer on a device at a time."""
    axis = mesh.axis_names[0]

    def per_shard(w_shards, x):
        def layer(x, w_shard):
            # Whole for this step of the scan only: the next one takes its place in memory.
            w = jax.lax.all_gather(w_shard, axis, tiled=True)
            return jax.nn.relu(x @ w), None

        x, _ = jax.lax.scan(layer, x, w_shards)
        return x

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(None, axis), P(axis)), out_specs=P(axis)
    )(w_shards, x)
