# title: Hazard: psum over the wrong mesh axis
# summary: The partial sums are over model, the psum is over data: it adds rows of different
#   examples.
# mesh: data=2,model=4
# kind: hazard
# target: project
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def body(x, w):
    partial = x @ w
    # The contracted dimension is sharded over model; this sums over data.
    return jax.lax.psum(partial, "data")


def project(x, w):
    in_specs = (P("data", "model"), P("model", None))
    return jax.shard_map(
        body, mesh=mesh, in_specs=in_specs, out_specs=P("data", None), check_vma=False
    )(x, w)


def project_args():
    n_data, n_model = mesh.shape["data"], mesh.shape["model"]
    x = jnp.arange(4.0 * n_data * n_model).reshape(2 * n_data, 2 * n_model) / 8
    w = jnp.ones((2 * n_model, 2))
    return x, w
