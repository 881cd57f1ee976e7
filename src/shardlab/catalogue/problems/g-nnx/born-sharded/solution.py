import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec


def init_sharded(seed, din, dout, mesh):
    """Return the kernel and bias of an nnx.Linear, with its outputs sharded over the mesh."""
    axis = mesh.axis_names[0]
    shardings = {
        "kernel": NamedSharding(mesh, PartitionSpec(None, axis)),
        "bias": NamedSharding(mesh, PartitionSpec(axis)),
    }

    def init():
        model = nnx.Linear(din, dout, rngs=nnx.Rngs(seed))
        return {"kernel": model.kernel[...], "bias": model.bias[...]}

    # Creation and placement are one program: each device computes only its own shard.
    return jax.jit(init, out_shardings=shardings)()
