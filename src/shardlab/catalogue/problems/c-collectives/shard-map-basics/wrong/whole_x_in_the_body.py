# SHAPE: the body doubles all of x, and out_specs concatenates one full x per device
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_double(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    spec = PartitionSpec(axis)
    return jax.shard_map(lambda y: x * 2.0, mesh=mesh, in_specs=spec, out_specs=spec)(x)
