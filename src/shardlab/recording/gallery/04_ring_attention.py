# title: Ring attention
# summary: Queries stay; keys and values travel around the ring of seq, and each device
#   updates its softmax with what arrives.
# mesh: seq=4
# kind: pattern
# target: attention
import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((4,), ("seq",), axis_types=(AxisType.Auto,))


def body(q, k, v):
    n = jax.lax.axis_size("seq")
    to_next = [(i, (i + 1) % n) for i in range(n)]
    # Online softmax: the largest score so far, the sum of weights, the weighted values.
    largest = jnp.full_like(q[:, :1], -jnp.inf)
    weight_sum = jnp.zeros_like(q[:, :1])
    weighted = jnp.zeros_like(q)
    for hop in range(n):
        scores = q @ k.T / q.shape[-1] ** 0.5
        new_largest = jnp.maximum(largest, scores.max(-1, keepdims=True))
        weights = jnp.exp(scores - new_largest)
        correction = jnp.exp(largest - new_largest)
        weight_sum = weight_sum * correction + weights.sum(-1, keepdims=True)
        weighted = weighted * correction + weights @ v
        largest = new_largest
        if hop < n - 1:
            k = jax.lax.ppermute(k, "seq", to_next)
            v = jax.lax.ppermute(v, "seq", to_next)
    return weighted / weight_sum


def attention(q, k, v):
    specs = P("seq", None)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=(specs,) * 3, out_specs=specs)
    return mapped(q, k, v)


def attention_args():
    length = 2 * mesh.shape["seq"]
    numbers = jnp.arange(2.0 * length).reshape(length, 2)
    q, k, v = jnp.sin(numbers), jnp.cos(numbers), numbers
    return q, k, v
