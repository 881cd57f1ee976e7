# SHAPE: the pieces stay where they are, and are glued together by another spec
import jax
from jax.sharding import PartitionSpec


def reshard(x, mesh, spec):
    return jax.shard_map(
        lambda piece: piece,
        mesh=mesh,
        in_specs=PartitionSpec(mesh.axis_names[0]),
        out_specs=spec,
        check_vma=False,
    )(x)
