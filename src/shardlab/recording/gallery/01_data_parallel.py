# title: Data parallel training step
# summary: Every device has all weights and a quarter of the batch; the gradients are
#   averaged over the mesh axis data.
# mesh: data=4
# kind: pattern
# target: step
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def loss(params, x, y):
    def body(w, b, x, y):
        # x and y are this device's part of the batch; w and b are copies.
        prediction = x @ w + b
        error = prediction - y
        local_loss = (error**2).mean()
        # The mean over devices of the mean over the local batch.
        return jax.lax.pmean(local_loss, "data")

    in_specs = (P(), P(), P("data"), P("data"))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=P())
    return mapped(params["w"], params["b"], x, y)


def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    # JAX has summed the gradients over data: w and b are the same on every device.
    new_params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return new_params, value


def step_args():
    n = mesh.shape["data"]
    x = jnp.arange(8.0 * n).reshape(2 * n, 4) / 10 - 1.5
    params = {"w": jnp.ones((4, 2)), "b": jnp.zeros(2)}
    y = jnp.stack([x.sum(1), -x[:, 0]], axis=1)
    return params, x, y
