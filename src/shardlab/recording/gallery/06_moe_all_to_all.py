# title: Mixture of experts with all-to-all
# summary: Each device has one expert. Tokens are sent to the device of their expert and
#   back with two all-to-alls.
# mesh: expert=4
# kind: pattern
# target: moe
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("expert",), axis_types=(AxisType.Auto,))


def body(tokens, choice, w):
    n = jax.lax.axis_size("expert")
    # Slot e of the buffer is for expert e: here each device has one token for each expert.
    order = jnp.argsort(choice)
    buffer = tokens[order].reshape(n, 1, -1)
    # Slot e goes to device e; afterwards slot i is what device i sent.
    received = jax.lax.all_to_all(buffer, "expert", split_axis=0, concat_axis=0)
    processed = received * w
    returned = jax.lax.all_to_all(processed, "expert", split_axis=0, concat_axis=0)
    # Back to the order in which the tokens came.
    return jnp.zeros_like(tokens).at[order].set(returned.reshape(tokens.shape))


def moe(tokens, choice, w):
    in_specs = (P("expert"), P("expert"), P("expert"))
    mapped = jax.shard_map(body, mesh=mesh, in_specs=in_specs, out_specs=P("expert"))
    return mapped(tokens, choice, w)


def moe_args():
    n = mesh.shape["expert"]
    tokens = jnp.arange(2.0 * n * n).reshape(n * n, 2)
    # Each device has one token for each expert, in another order.
    choice = ((jnp.arange(n) + jnp.arange(n)[:, None]) % n).reshape(-1)
    # Expert e multiplies by e + 1.
    w = jnp.arange(1.0, n + 1).reshape(n, 1, 1)
    return tokens, choice, w
