import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def loss_and_grad(w, x, y, mesh):
    """Return the mean squared error of x @ w, and its gradient in w, sharded like w."""
    data, model = mesh.axis_names[:2]

    def loss(w, x, y):
        # Each device has only some terms of its predictions: complete them first.
        prediction = jax.lax.psum(x @ w, model)
        return jax.lax.pmean(jnp.mean((prediction - y) ** 2), data)

    # From outside, this is a function of full arrays with a scalar result. JAX differentiates it:
    # the sums of the backward pass follow from the specs.
    global_loss = jax.shard_map(
        loss, mesh=mesh, in_specs=(P(model), P(data, model), P(data)), out_specs=P()
    )
    return jax.value_and_grad(global_loss)(w, x, y)
