# title: Hazard: a bias added before the psum
# summary: Each of the four devices adds the bias to its partial sum, so the sum has it four times.
# mesh: model=4
# kind: hazard
# target: dense
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("model",), axis_types=(AxisType.Auto,))


def body(x, w, b):
    partial = x @ w
    # Wrong place: add b after the psum.
    with_bias = partial + b
    return jax.lax.psum(with_bias, "model")


def dense(x, w, b):
    in_specs = (P(None, "model"), P("model", None), P())
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=P())(x, w, b)


def dense_args():
    n = mesh.shape["model"]
    x = jnp.ones((2, 2 * n))
    w = jnp.ones((2 * n, 3))
    return x, w, jnp.array([100.0, 200.0, 300.0])
