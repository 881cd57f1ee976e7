# VMA: the loss of the device's own rows is declared replicated
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_step(params, x, y, lr, mesh):
    axis = mesh.axis_names[0]

    def loss_of(params, x, y):
        error = x @ params["w"] + params["b"] - y
        return jnp.mean(error**2)

    def per_shard(params, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        grads = jax.tree.map(lambda g: g / jax.lax.axis_size(axis), grads)
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), loss

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(), P(axis), P(axis)), out_specs=(P(), P())
    )(params, x, y)
