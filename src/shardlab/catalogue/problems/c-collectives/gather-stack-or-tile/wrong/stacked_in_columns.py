# WA: the shards are stacked after the rows, and a reshape mixes them
import jax
from jax.sharding import PartitionSpec


def gather_rows(x, mesh):
    axis = mesh.axis_names[0]

    def gather(y):
        blocks = jax.lax.all_gather(y, axis, axis=1, to="invarying")
        return blocks.reshape(-1, y.shape[1])

    return jax.shard_map(
        gather, mesh=mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec()
    )(x)
