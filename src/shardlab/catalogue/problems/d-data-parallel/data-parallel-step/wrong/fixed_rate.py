# WA: steps with a learning rate of 0.5, whatever lr is
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_step(params, x, y, lr, mesh):
    axis = mesh.axis_names[0]

    def loss_of(params, x, y):
        error = x @ params["w"] + params["b"] - y
        return jax.lax.pmean(jnp.mean(error**2), axis)

    def per_shard(params, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), loss

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(), P(axis), P(axis)), out_specs=(P(), P())
    )(params, x, y)
