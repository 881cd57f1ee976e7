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
    x = jnp.arange(16.0).reshape(4, 4) / 8 - 1
    w1 = (jnp.arange(32.0).reshape(4, 8) % 5 - 2) / 4
    w2 = (jnp.arange(32.0).reshape(8, 4) % 3 - 1) / 2
    return (
        jax.device_put(x, sharding("data", None)),
        jax.device_put(w1, sharding(None, "model")),
        jax.device_put(w2, sharding("model", None)),
    )
