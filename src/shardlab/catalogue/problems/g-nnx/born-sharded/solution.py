import jax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec


def init_sharded(seed, din, dout, mesh):
    """Return the kernel and bias of an nnx.Linear, whose outputs are split over the mesh."""
    axis = mesh.axis_names[0]
    shardings = {
        "kernel": NamedSharding(mesh, PartitionSpec(None, axis)),
        "bias": NamedSharding(mesh, PartitionSpec(axis)),
    }

    def init():
        model = nnx.Linear(din, dout, rngs=nnx.Rngs(seed))
        return {"kernel": model.kernel[...], "bias": model.bias[...]}

    # Making and placing are one program: the compiler lets each device make its own part alone.
    return jax.jit(init, out_shardings=shardings)()
