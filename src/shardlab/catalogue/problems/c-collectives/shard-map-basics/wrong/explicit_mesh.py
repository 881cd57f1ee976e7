# SPEC: jax.make_mesh makes Explicit mesh axes, and the sharding of x does not match in_specs
import jax
from jax.sharding import PartitionSpec


def shard_map_double(x, mesh=None):
    if mesh is None:
        mesh = jax.make_mesh((1,), ("data",))
    spec = PartitionSpec(mesh.axis_names[0])
    return jax.shard_map(lambda y: y * 2.0, mesh=mesh, in_specs=spec, out_specs=spec)(x)
