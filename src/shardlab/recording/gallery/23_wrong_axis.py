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
    x = jnp.arange(32.0).reshape(4, 8) / 8
    w = jnp.ones((8, 2))
    return x, w
