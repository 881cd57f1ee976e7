# WA: a different key per device makes the model depend on the mesh
import jax
from flax import nnx
from jax.sharding import PartitionSpec


def init_sharded(seed, din, dout, mesh):
    axis = mesh.axis_names[0]

    def init():
        key = jax.random.key(seed + jax.lax.axis_index(axis))
        model = nnx.Linear(din, dout // mesh.shape[axis], rngs=nnx.Rngs(key))
        return {"kernel": model.kernel[...], "bias": model.bias[...]}

    specs = {"kernel": PartitionSpec(None, axis), "bias": PartitionSpec(axis)}
    return jax.shard_map(init, mesh=mesh, in_specs=(), out_specs=specs)()
