# title: Hazard: the same dropout mask on every device
# summary: All devices use one random key, so all parts of the batch get the same mask.
# mesh: data=4
# kind: hazard
# target: dropout
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def body(key, x):
    # Right: key = jax.random.fold_in(key, jax.lax.axis_index("data")).
    keep = jax.random.bernoulli(key, 0.5, x.shape)
    return jnp.where(keep, x * 2, 0.0)


def dropout(key, x):
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(P(), P("data")), out_specs=P("data"))
    return mapped(key, x)


def dropout_args():
    return jax.random.key(0), jnp.ones((2 * mesh.shape["data"], 4))
