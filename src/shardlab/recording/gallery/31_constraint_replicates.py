# title: Hazard: a constraint that does not shard
# summary: 10 columns are not divisible by the 4 devices of model. JAX does not warn; every device
#   stores all columns, or too many of them.
# mesh: data=2,model=4
# kind: hazard
# target: layer
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


@jax.jit
def layer(x, w):
    hidden = jnp.tanh(x @ w)
    # Right: pad w to 12 columns, or shard another dimension.
    hidden = jax.lax.with_sharding_constraint(hidden, NamedSharding(mesh, P("data", "model")))
    return hidden * 2


def layer_args():
    n_rows = 3 * mesh.shape["data"]
    x = jnp.arange(3.0 * n_rows).reshape(n_rows, 3) / 9
    x = jax.device_put(x, NamedSharding(mesh, P("data", None)))
    w = jax.device_put(jnp.ones((3, 10)) / 3, NamedSharding(mesh, P()))
    return x, w
