# WA: multiplies some features by some rows, and sums over devices with different examples
import jax
from jax.sharding import PartitionSpec as P


def fsdp_forward(w_shards, x, mesh):
    axis = mesh.axis_names[0]

    def per_shard(w_shards, x):
        def layer(x, w_shard):
            width = w_shard.shape[0]
            start = jax.lax.axis_index(axis) * width
            term = jax.lax.dynamic_slice_in_dim(x, start, width, axis=1) @ w_shard
            y = jax.lax.psum(term, axis)
            return jax.nn.relu(jax.lax.pcast(y, axis, to="varying")), None

        x, _ = jax.lax.scan(layer, x, w_shards)
        return x

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(None, axis), P(axis)), out_specs=P(axis)
    )(w_shards, x)
