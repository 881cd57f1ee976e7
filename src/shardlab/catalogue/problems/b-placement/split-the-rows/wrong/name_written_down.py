# SPEC: the mesh axis name is hard-coded as data, and the mesh uses a different name
import jax
from jax.sharding import NamedSharding, PartitionSpec


def place_rows(x, mesh):
    """Return x with its rows sharded over the first mesh axis."""
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
