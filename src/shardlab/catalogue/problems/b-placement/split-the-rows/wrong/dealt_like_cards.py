# WA: row i goes to device i % n (round robin) instead of in contiguous blocks
import jax
from jax.sharding import NamedSharding, PartitionSpec


def place_rows(x, mesh):
    """Return x with its rows sharded over the first mesh axis."""
    n = mesh.shape[mesh.axis_names[0]]
    if len(x) % n == 0:
        x = x.reshape(-1, n, x.shape[1]).swapaxes(0, 1).reshape(x.shape)
    return jax.device_put(x, NamedSharding(mesh, PartitionSpec(mesh.axis_names[0])))
