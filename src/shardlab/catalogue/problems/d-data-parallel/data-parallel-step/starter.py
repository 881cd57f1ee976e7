import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_step(params, x, y, lr, mesh):
    """Return params after one step of gradient descent, and the loss of the full batch."""
    axis = mesh.axis_names[0]
    # The loss of a batch is jnp.mean((x @ params["w"] + params["b"] - y) ** 2).
    raise NotImplementedError
