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

    model = nnx.Linear(din, dout, rngs=nnx.Rngs(seed))  # the full layer, on one device
    return jax.device_put({"kernel": model.kernel[...], "bias": model.bias[...]}, shardings)
