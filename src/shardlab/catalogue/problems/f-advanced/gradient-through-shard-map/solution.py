import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def loss_and_grad(w, x, y, mesh):
    """Return the mean squared error of x @ w, and its gradient in w, split like w."""
    data, model = mesh.axis_names[:2]

    def loss(w, x, y):
        # Each device has some terms of its predictions: complete them first.
        prediction = jax.lax.psum(x @ w, model)
        return jax.lax.pmean(jnp.mean((prediction - y) ** 2), data)

    # From outside, this is a function of whole arrays with one number as its result. Its gradient
    # is JAX's business: what has to be added up on the way back follows from the specs.
    whole_loss = jax.shard_map(
        loss, mesh=mesh, in_specs=(P(model), P(data, model), P(data)), out_specs=P()
    )
    return jax.value_and_grad(whole_loss)(w, x, y)
