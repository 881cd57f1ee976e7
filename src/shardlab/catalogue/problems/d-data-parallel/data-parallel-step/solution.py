import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def dp_step(params, x, y, lr, mesh):
    """Return params after one step of gradient descent, and the loss of the full batch."""
    axis = mesh.axis_names[0]

    def loss_of(params, x, y):
        error = x @ params["w"] + params["b"] - y
        # pmean makes this the loss of the full batch, so its gradient is that of the full batch
        # too: JAX sums it over the devices, because params are the same on all of them.
        return jax.lax.pmean(jnp.mean(error**2), axis)

    def per_shard(params, x, y):
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        return jax.tree.map(lambda p, g: p - lr * g, params, grads), loss

    return jax.shard_map(
        per_shard, mesh=mesh, in_specs=(P(), P(axis), P(axis)), out_specs=(P(), P())
    )(params, x, y)
