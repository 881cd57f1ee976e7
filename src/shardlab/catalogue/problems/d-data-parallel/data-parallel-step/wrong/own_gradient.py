# REPLICAS missing_pmean: without check_vma, every device steps along the gradient of its own rows
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
        loss = jax.lax.pmean(loss, axis)
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), loss

    return jax.shard_map(
        per_shard,
        mesh=mesh,
        in_specs=(P(), P(axis), P(axis)),
        out_specs=(P(), P()),
        check_vma=False,
    )(params, x, y)
