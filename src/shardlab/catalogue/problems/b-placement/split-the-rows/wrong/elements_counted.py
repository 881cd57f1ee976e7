# WA: checks whether the number of elements is divisible, not the number of rows
import jax
from jax.sharding import NamedSharding, PartitionSpec


def place_rows(x, mesh):
    """Return x with its rows sharded over the first mesh axis."""
    axis = mesh.axis_names[0]
    if x.size % mesh.shape[axis]:
        raise ValueError(f"{x.size} elements are not divisible by {mesh.shape[axis]}")
    rows = NamedSharding(mesh, PartitionSpec(axis))
    return jax.jit(lambda y: jax.lax.with_sharding_constraint(y, rows))(x)
