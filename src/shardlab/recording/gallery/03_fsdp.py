# title: FSDP: gather weights, scatter gradients
# summary: Weights are sharded over data. Each layer gathers them to compute; the backward
#   pass sums and scatters the gradients.
# mesh: data=4
# kind: pattern
# target: step
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def loss(params, x, y):
    def layer(h, w_shard):
        # Every device needs the full weight for a moment.
        w = jax.lax.all_gather(w_shard, "data", axis=0, tiled=True)
        return jnp.tanh(h @ w)

    def body(w1, w2, x, y):
        h = layer(x, w1)
        out = layer(h, w2)
        local_loss = ((out - y) ** 2).mean()
        return jax.lax.pmean(local_loss, "data")

    in_specs = (P("data"), P("data"), P("data"), P("data"))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=P())
    return mapped(params["w1"], params["w2"], x, y)


def step(params, x, y):
    value, grads = jax.value_and_grad(loss)(params, x, y)
    # The gradient of all_gather is a reduce-scatter: grads are sharded like the weights.
    return jax.tree.map(lambda p, g: p - 0.5 * g, params, grads), value


def step_args():
    n = mesh.shape["data"]
    # Rows of the weights and examples are divided by the size of data.
    w = (jnp.arange(1.0 * n * n).reshape(n, n) % 7 - 3) / (1.5 * n)
    x = jnp.arange(2.0 * n * n).reshape(2 * n, n) % 32 / 16 - 1
    return {"w1": w, "w2": w.T}, x, jnp.sign(x)
