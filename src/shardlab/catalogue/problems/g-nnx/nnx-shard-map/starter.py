import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec


def shard_map_simulate(seed, x, num_shards, features):
    """Return model(x), flattened: apply one model to num_shards slices of x in a loop."""
    # Create the model, apply it to each slice of x, and concatenate the results.
    raise NotImplementedError


def nnx_shard_map(seed, x, mesh, features):
    """Return model(x), flattened: each device applies the same model to its rows of x."""
    # The same computation without a loop: jax.shard_map over the first mesh axis.
    raise NotImplementedError
