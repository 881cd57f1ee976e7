# SHARD: the inputs of the layer are sharded, not its outputs
import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec


def init_sharded(seed, din, dout, mesh):
    axis = mesh.axis_names[0]
    shardings = {
        "kernel": NamedSharding(mesh, PartitionSpec(axis, None)),
        "bias": NamedSharding(mesh, PartitionSpec(axis)),
    }

    def init():
        model = nnx.Linear(din, dout, rngs=nnx.Rngs(seed))
        return {"kernel": model.kernel[...], "bias": model.bias[...]}

    return jax.jit(init, out_shardings=shardings)()
