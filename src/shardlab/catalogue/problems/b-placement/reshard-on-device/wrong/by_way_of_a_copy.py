# COMM: x is made whole on every device first, and cut from there
import jax
from jax.sharding import NamedSharding, PartitionSpec


def reshard(x, mesh, spec):
    whole = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))(x)
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, spec))(whole)
