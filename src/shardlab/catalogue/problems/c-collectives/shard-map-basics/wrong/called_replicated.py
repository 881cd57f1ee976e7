# VMA: the shards differ from device to device, but out_specs claims that they are equal
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_double(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    return jax.shard_map(
        lambda y: y * 2.0, mesh=mesh, in_specs=PartitionSpec(axis), out_specs=PartitionSpec()
    )(x)
