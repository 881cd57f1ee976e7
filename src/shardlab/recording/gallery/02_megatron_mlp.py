# title: Megatron MLP: columns, then rows
# summary: The first weight is sharded by columns and the second by rows over model, so one
#   psum at the end is enough.
# mesh: data=2,model=4
# kind: pattern
# target: mlp
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def body(x, w1, w2):
    # Each device computes its own columns of the hidden layer: no communication.
    hidden = jax.nn.relu(x @ w1)
    # Its rows of w2 see only these columns: a partial sum of the result.
    partial = hidden @ w2
    return jax.lax.psum(partial, "model")


def mlp(x, w1, w2):
    in_specs = (P("data", None), P(None, "model"), P("model", None))
    return jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=P("data", None))(x, w1, w2)


def mlp_args():
    n_data, n_model = mesh.shape["data"], mesh.shape["model"]
    x = jnp.arange(8.0 * n_data).reshape(2 * n_data, 4) / 4 - 2
    w1 = (jnp.arange(8.0 * n_model).reshape(4, 2 * n_model) % 5 - 2) / 2
    w2 = (jnp.arange(8.0 * n_model).reshape(2 * n_model, 4) % 3 - 1) / 2
    return x, w1, w2
