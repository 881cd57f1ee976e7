# title: Hazard: a NaN on one device reaches all
# summary: One device divides by zero. After the psum every device has NaN, and the reason is gone.
# mesh: data=4
# kind: hazard
# target: normalized_sum
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def body(x):
    # One device has nothing but zeros.
    scaled = x / x.sum()
    return jax.lax.psum(scaled, "data")


def normalized_sum(x):
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


def normalized_sum_args():
    n = mesh.shape["data"]
    first = 3 * (n // 2)  # of the device in the middle
    return (jnp.arange(3.0 * n).at[first : first + 3].set(0.0),)
