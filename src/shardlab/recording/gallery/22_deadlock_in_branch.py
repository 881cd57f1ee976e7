# title: Hazard: a collective in a branch that some devices skip
# summary: Devices with a small value skip the psum; the others wait for them forever.
# mesh: data=4
# kind: hazard
# target: clipped_sum
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def body(x):
    norm = jnp.sqrt((x**2).sum())

    def with_all_devices(x):
        return jax.lax.psum(x, "data")

    def alone(x):
        return x

    # The predicate differs between devices.
    return jax.lax.cond(norm > 10, with_all_devices, alone, x)


def clipped_sum(x):
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P("data"), check_vma=False)(
        x
    )


def clipped_sum_args():
    return (jnp.arange(4.0 * mesh.shape["data"]),)
