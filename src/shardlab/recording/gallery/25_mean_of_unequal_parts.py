# title: Hazard: a mean of means
# summary: Devices have different numbers of valid tokens; the mean of their means is not
#   the mean over all tokens.
# mesh: data=4
# kind: hazard
# target: masked_mean
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def body(loss, is_valid):
    total = (loss * is_valid).sum()
    count = is_valid.sum()
    local_mean = total / count
    # Right: psum(total) / psum(count).
    return jax.lax.pmean(local_mean, "data")


def masked_mean(loss, is_valid):
    specs = (P("data"), P("data"))
    return jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P())(loss, is_valid)


def masked_mean_args():
    n = mesh.shape["data"]
    loss = jnp.arange(4.0 * n)
    # The first 4 tokens of device 0 are valid, the first one of device 1, and so on.
    n_valid = jnp.array([4, 1, 2, 3])[jnp.arange(n) % 4]
    is_valid = (jnp.arange(4) < n_valid[:, None]).reshape(-1).astype(jnp.float32)
    return loss, is_valid
