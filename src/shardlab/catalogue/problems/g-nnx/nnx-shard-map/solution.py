import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec


def shard_map_simulate(seed, x, num_shards, features):
    """Return model(x), flattened: apply one model to num_shards slices of x in a loop."""
    num_shards = int(num_shards)
    # One model for all slices: its parameters are drawn once.
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))
    chunk = x.shape[0] // num_shards
    outs = []
    for i in range(num_shards):
        x_shard = jax.lax.dynamic_slice_in_dim(x, i * chunk, chunk, axis=0)
        outs.append(model(x_shard))
    return jnp.concatenate(outs, axis=0).reshape(-1)


def nnx_shard_map(seed, x, mesh, features):
    """Return model(x), flattened: each device applies the same model to its rows of x."""
    axis = mesh.axis_names[0]
    model = nnx.Linear(x.shape[-1], int(features), rngs=nnx.Rngs(int(seed)))

    def forward(y):
        # The specs replace the loop, the slices and the concatenation. The body closes over the
        # model, so its parameters are replicated.
        return model(y).reshape(-1)

    spec = PartitionSpec(axis)
    return jax.shard_map(forward, mesh=mesh, in_specs=spec, out_specs=spec)(x)
