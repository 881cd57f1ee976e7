# SPEC: jax.make_mesh makes Explicit mesh axes, and the sharding of x does not match in_specs
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec


def shard_map_psum(x, mesh=None):
    """Return the sum of all elements of x, the same on every device."""
    if mesh is None:
        mesh = jax.make_mesh((1,), ("data",))
    axis = mesh.axis_names[0]
    return jax.shard_map(
        lambda y: jax.lax.psum(jnp.sum(y), axis),
        mesh=mesh,
        in_specs=PartitionSpec(axis),
        out_specs=PartitionSpec(),
    )(x)
