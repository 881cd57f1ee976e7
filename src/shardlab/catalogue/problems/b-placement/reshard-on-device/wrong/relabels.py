# SHAPE: the shards stay where they are, and a different spec joins them
import jax
from jax.sharding import PartitionSpec


def reshard(x, mesh, spec):
    return jax.shard_map(
        lambda shard: shard,
        mesh=mesh,
        in_specs=PartitionSpec(mesh.axis_names[0]),
        out_specs=spec,
        check_vma=False,
    )(x)
