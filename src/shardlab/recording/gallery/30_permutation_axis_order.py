# title: Hazard: a ring whose axes are in another order
# summary: The ppermute names model before data. This JAX numbers devices in mesh order
#   all the same, so each shard goes to another device than the pairs say.
# mesh: data=2,model=4
# kind: hazard
# target: shift
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
n_devices = mesh.shape["data"] * mesh.shape["model"]
ring = [(i, (i + 1) % n_devices) for i in range(n_devices)]


def body(x):
    # Right: ("data", "model"), the order of the mesh.
    moved = jax.lax.ppermute(x, ("model", "data"), ring)
    return moved + x


def shift(x):
    spec = P(("data", "model"))
    return jax.shard_map(body, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def shift_args():
    return (jnp.arange(float(n_devices)),)
