# API: in_specs asks for columns, and the compiler reshards before the body
import jax
from jax.sharding import PartitionSpec


def swap_axis(x, mesh):
    spec = PartitionSpec(None, mesh.axis_names[0])
    return jax.shard_map(lambda y: y, mesh=mesh, in_specs=spec, out_specs=spec)(x)
