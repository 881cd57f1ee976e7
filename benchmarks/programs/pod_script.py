"""A script for `shardlab run`: a jit and a shard_map on all devices, two mesh axes."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

n_devices = jax.device_count()
rows = 1 << (n_devices.bit_length() // 2)
mesh = jax.make_mesh((rows, n_devices // rows), ("data", "model"))
x = jax.device_put(jnp.ones((1024, 64)), NamedSharding(mesh, P("data")))
w = jax.device_put(jnp.ones((64, 1024)), NamedSharding(mesh, P(None, "model")))


@jax.jit
def mean_square(x, w):
    return jnp.mean((x @ w) ** 2)


@jax.jit
@jax.shard_map(mesh=mesh, in_specs=(P("data"), P(None, "model")), out_specs=P())
def sharded_mean_square(x, w):
    return jax.lax.pmean(jnp.mean((x @ w) ** 2), ("data", "model"))


assert mean_square(x, w) == sharded_mean_square(x, w) == 4096
