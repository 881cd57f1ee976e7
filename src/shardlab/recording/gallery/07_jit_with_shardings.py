# title: jit with shardings
# summary: No shard_map: arrays have shardings, and the compiler decides where to communicate.
# mesh: data=2,model=4
# kind: pattern
# target: predict
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def sharding(*entries):
    return NamedSharding(mesh, P(*entries))


@jax.jit
def predict(x, w1, w2):
    hidden = jnp.tanh(x @ w1)
    # The contracted dimension is sharded over model: the compiler inserts an all-reduce.
    return hidden @ w2


def predict_args():
    n_data, n_model = mesh.shape["data"], mesh.shape["model"]
    x = jnp.arange(8.0 * n_data).reshape(2 * n_data, 4) / 8 - 1
    w1 = (jnp.arange(8.0 * n_model).reshape(4, 2 * n_model) % 5 - 2) / 4
    w2 = (jnp.arange(8.0 * n_model).reshape(2 * n_model, 4) % 3 - 1) / 2
    return (
        jax.device_put(x, sharding("data", None)),
        jax.device_put(w1, sharding(None, "model")),
        jax.device_put(w2, sharding("model", None)),
    )
