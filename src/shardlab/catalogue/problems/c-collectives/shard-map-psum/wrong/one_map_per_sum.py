# API: one shard_map adds up the shards, and a second one the devices
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_psum(x, mesh=None):
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    axis = mesh.axis_names[0]
    spec = PartitionSpec(axis)
    terms = jax.shard_map(
        lambda y: jnp.sum(y, keepdims=True), mesh=mesh, in_specs=spec, out_specs=spec
    )(x)
    return jax.shard_map(
        lambda term: jax.lax.psum(term[0], axis),
        mesh=mesh,
        in_specs=spec,
        out_specs=PartitionSpec(),
    )(terms)
