import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_double(x, mesh=None):
    """Return x * 2; each device doubles its own shard."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    # Set how x is sharded, double one shard, and set how the shards form the result.
    raise NotImplementedError
