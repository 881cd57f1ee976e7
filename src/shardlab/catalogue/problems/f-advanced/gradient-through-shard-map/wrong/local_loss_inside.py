# WA gradient_scaled_by_n: the gradient of a local loss is summed over the devices
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def loss_and_grad(w, x, y, mesh):
    data, model = mesh.axis_names[:2]

    def loss(w, x, y):
        prediction = jax.lax.psum(x @ w, model)
        return jnp.mean((prediction - y) ** 2)

    def per_shard(w, x, y):
        value, grad = jax.value_and_grad(loss)(w, x, y)
        return jax.lax.pmean(value, data), grad

    return jax.shard_map(
        per_shard,
        mesh=mesh,
        in_specs=(P(model), P(data, model), P(data)),
        out_specs=(P(), P(model)),
    )(w, x, y)
