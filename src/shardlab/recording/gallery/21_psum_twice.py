# title: Hazard: psum of a value that is already summed
# summary: The second psum adds four equal copies: loss and gradient are four times too large.
# mesh: data=4
# kind: hazard
# target: step
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def loss(w, x):
    def body(w, x):
        local = (x * w).sum()
        total = jax.lax.psum(local, "data")
        # total is the same on every device; summing it again multiplies by the number of devices.
        return jax.lax.psum(total, "data")

    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False
    )
    return mapped(w, x)


def step(w, x):
    return jax.value_and_grad(loss)(w, x)


def step_args():
    return jnp.float32(2.0), jnp.arange(2.0 * mesh.shape["data"])
