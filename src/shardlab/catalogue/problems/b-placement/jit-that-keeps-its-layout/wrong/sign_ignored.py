# WA: divides by the largest element, which is not the largest absolute value
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def scale(x, mesh):
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
    return jax.jit(lambda x: x / jnp.max(x), out_shardings=rows)(x)
