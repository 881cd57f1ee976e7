# WA: the added 1e-6 is not small compared to a maximum of 1e-9
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def scale(x, mesh):
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    return jax.jit(lambda x: x / (jnp.max(jnp.abs(x)) + 1e-6), out_shardings=rows)(x)
