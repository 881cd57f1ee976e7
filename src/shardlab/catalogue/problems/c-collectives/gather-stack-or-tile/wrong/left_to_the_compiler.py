# API: in_specs asks for all rows, and the compiler inserts the all-gather before the body
import jax
from jax.sharding import PartitionSpec


def gather_rows(x, mesh):
    spec = PartitionSpec()
    return jax.shard_map(lambda y: y, mesh=mesh, in_specs=spec, out_specs=spec)(x)
