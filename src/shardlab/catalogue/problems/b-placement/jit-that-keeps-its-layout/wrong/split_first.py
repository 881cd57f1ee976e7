# COMM: x is sharded before the maximum is taken, so the devices must communicate
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec


def scale(x, mesh):
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))

    @jax.jit
    def divide_by_max(x):
        x = jax.lax.with_sharding_constraint(x, rows)
        return x / jnp.max(jnp.abs(x))

    return divide_by_max(x)
