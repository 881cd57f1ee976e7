# title: Hazard: a gradient that JAX has summed already
# summary: JAX sums the gradient of a replicated weight over data. The psum adds four equal
#   gradients: sign hides the factor here, and a later optimizer step will not.
# mesh: data=4
# kind: hazard
# target: step
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def loss(w, x):
    return jax.lax.pmean((x @ w).mean(), "data")


def body(w, x):
    gradient = jax.grad(loss)(w, x)
    # The gradient is replicated: this multiplies it by the number of devices.
    total = jax.lax.psum(gradient, "data")
    return w - 0.1 * jnp.sign(total)


def step(w, x):
    return jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())(w, x)


def step_args():
    n_rows = 2 * mesh.shape["data"]
    return jnp.ones(3), jnp.arange(3.0 * n_rows).reshape(n_rows, 3) - 10
