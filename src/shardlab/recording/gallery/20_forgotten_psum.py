# title: Hazard: a forgotten psum
# summary: The result is only this device's partial sum, and out_specs calls it replicated.
#   check_vma=False hides it from JAX.
# mesh: model=4
# kind: hazard
# target: project
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("model",), axis_types=(AxisType.Auto,))


def body(x, w):
    partial = x @ w
    # Missing: jax.lax.psum(partial, "model"). Every device returns another number.
    return partial


def project(x, w):
    in_specs = (P(None, "model"), P("model", None))
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=P(), check_vma=False)(x, w)


def project_args():
    n = mesh.shape["model"]
    x = jnp.arange(4.0 * n).reshape(2, 2 * n)
    w = jnp.ones((2 * n, 3)) / 2
    return x, w
