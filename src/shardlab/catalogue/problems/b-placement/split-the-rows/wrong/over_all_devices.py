# SHARD: the rows are sharded over every mesh axis instead of the first
import jax
from jax.sharding import NamedSharding, PartitionSpec


def place_rows(x, mesh):
    """Return x with its rows sharded over the first mesh axis."""
    n = mesh.shape[mesh.axis_names[0]]
    if len(x) % n:
        raise ValueError(f"{len(x)} rows are not divisible by {n}")
    rows = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    return jax.jit(lambda y: jax.lax.with_sharding_constraint(y, rows))(x)
