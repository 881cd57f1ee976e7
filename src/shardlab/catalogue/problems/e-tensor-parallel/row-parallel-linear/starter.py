import jax
from jax.sharding import PartitionSpec as P


def row_linear(x, w, b, mesh):
    """Return x @ w + b, replicated, from x and w sharded along the inner dimension."""
    axis = mesh.axis_names[0]
    # What is x @ w on one device, and what is still missing from it?
    raise NotImplementedError
