import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec


def shard_map_double(x, mesh=None):
    """Return x * 2, each device doubling its own piece."""
    if mesh is None:
        mesh = Mesh(np.array(jax.devices()[:1]), ("data",))
    # Say how x is split, double one piece, and say how the pieces are put together.
    raise NotImplementedError
