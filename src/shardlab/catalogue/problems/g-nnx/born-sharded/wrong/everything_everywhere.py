# MEM: every device creates the full kernel and slices out its own shard
import jax
from flax import nnx
from jax.sharding import PartitionSpec


def init_sharded(seed, din, dout, mesh):
    axis = mesh.axis_names[0]
    size = dout // mesh.shape[axis]

    def init():
        model = nnx.Linear(din, dout, rngs=nnx.Rngs(seed))
        start = jax.lax.axis_index(axis) * size
        return {
            "kernel": jax.lax.dynamic_slice_in_dim(model.kernel[...], start, size, axis=1),
            "bias": jax.lax.dynamic_slice_in_dim(model.bias[...], start, size, axis=0),
        }

    specs = {"kernel": PartitionSpec(None, axis), "bias": PartitionSpec(axis)}
    return jax.shard_map(init, mesh=mesh, in_specs=(), out_specs=specs)()
