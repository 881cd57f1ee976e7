# API: the mesh that is made if none is passed has the axis 'rows', not 'data'
import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_double(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("rows",))
    axis = mesh.axis_names[0]
    spec = PartitionSpec(axis)
    return jax.shard_map(lambda y: y * 2.0, mesh=mesh, in_specs=spec, out_specs=spec)(x)
