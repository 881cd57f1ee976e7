# title: Hazard: two branches, two different collectives
# summary: Devices 0 and 2 call psum, devices 1 and 3 call pmax. The calls are matched with one
#   another: the program hangs, or ends with values that neither branch computes.
# mesh: data=4
# kind: hazard
# target: normalize
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def body(x):
    is_even = jax.lax.axis_index("data") % 2 == 0

    def by_sum(x):
        return jax.lax.psum(x.sum(), "data")

    def by_maximum(x):
        return jax.lax.pmax(x.max(), "data")

    # Right: call both on every device, and select with jnp.where.
    scale = jax.lax.cond(is_even, by_sum, by_maximum, x)
    return x / scale


def normalize(x):
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)(
        x
    )


def normalize_args():
    return (jnp.arange(3.0 * mesh.shape["data"]) + 1,)
