# COMM: correct, but without the types JAX sums gradients that are already replicated
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def loss_and_grad(w, x, y, mesh):
    data, model = mesh.axis_names[:2]

    def loss(w, x, y):
        prediction = jax.lax.psum(x @ w, model)
        return jax.lax.pmean(jnp.mean((prediction - y) ** 2), data)

    global_loss = jax.shard_map(
        loss,
        mesh=mesh,
        in_specs=(P(model), P(data, model), P(data)),
        out_specs=P(),
        check_vma=False,
    )
    return jax.value_and_grad(global_loss)(w, x, y)
