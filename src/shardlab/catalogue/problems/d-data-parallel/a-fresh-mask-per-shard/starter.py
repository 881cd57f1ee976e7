import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_dropout(key, x, p, mesh):
    """Return x with elements dropped with probability p and the rest divided by 1 - p."""
    axis = mesh.axis_names[0]
    # jax.random.bernoulli(key, 1 - p, shape) is True for elements that are not dropped.
    raise NotImplementedError


def dp_dropout_steps(keys, x, p, mesh):
    """Return one result for each key."""
    return [dp_dropout(key, x, p, mesh) for key in keys]
