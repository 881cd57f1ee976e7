# API: check_vma is off, so JAX no longer proves that all devices hold the same values
import jax
from jax.sharding import PartitionSpec


def gather_rows(x, mesh):
    axis = mesh.axis_names[0]

    def gather(y):
        return jax.lax.all_gather(y, axis, tiled=True)

    return jax.shard_map(
        gather, mesh=mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec(), check_vma=False
    )(x)
