# WA: rows that do not fit are silently dropped
import jax
from jax.sharding import NamedSharding, PartitionSpec


def place_rows(x, mesh):
    """Return x with its rows sharded over the first mesh axis."""
    n = mesh.shape[mesh.axis_names[0]]
    x = x[: len(x) // n * n]
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])))
