import jax
from jax.sharding import PartitionSpec as P


def tp_mlp(x, w1, b1, w2, b2, mesh):
    """Return relu(x @ w1 + b1) @ w2 + b2, the same on every device."""
    axis = mesh.axis_names[0]
    # A device holds some hidden units: columns of w1 and the matching rows of w2.
    raise NotImplementedError
