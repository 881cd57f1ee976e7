# API: the parameters are updated in a second shard_map
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_step(params, x, y, lr, mesh):
    axis = mesh.axis_names[0]

    def loss_of(params, x, y):
        error = x @ params["w"] + params["b"] - y
        return jax.lax.pmean(jnp.mean(error**2), axis)

    def update(params, grads):
        return jax.tree.map(lambda p, g: p - lr * g, params, grads)

    loss, grads = jax.shard_map(
        jax.value_and_grad(loss_of),
        mesh=mesh,
        in_specs=(P(), P(axis), P(axis)),
        out_specs=(P(), P()),
    )(params, x, y)
    new = jax.shard_map(update, mesh=mesh, in_specs=(P(), P()), out_specs=P())(params, grads)
    return new, loss
