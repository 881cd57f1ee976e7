import jax
from jax.sharding import PartitionSpec as P


def row_linear(x, w, b, mesh):
    """Return x @ w + b, the same on every device, from x and w split along the inner dimension."""
    axis = mesh.axis_names[0]
    # What does x @ w give on one device, and what is still missing from it?
    raise NotImplementedError
