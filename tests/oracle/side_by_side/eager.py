"""Eager operations on sharded arrays, as tutorials type them at the prompt."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from side_by_side.placement import put
from side_by_side.registry import Programs

PROGRAMS = Programs()


def add_eager(name, function, *specs):
    PROGRAMS[name] = lambda: function(*(put(spec) for spec in specs))


ROWS, COLUMNS, BOTH = P("data"), P(None, "model"), P("data", "model")

for name, function in {
    "arithmetic": lambda x: [x + 1, -x, x**2, x / 3, x // 2, x % 5, abs(x - 9), x @ x.T],
    "comparison": lambda x: [x > 5, (x > 5).any(), jnp.where(x > 5, x, 0), (x == x).all()],
    "numpy_mixed": lambda x: [x + np.ones((8, 12), np.float32), np.float32(2) * x, x + 1j],
    "ufuncs": lambda x: [jnp.sin(x), jnp.exp(-x), jnp.maximum(x, 3), jnp.clip(x, 2, 9)],
    "index_integer": lambda x: [x[0], x[-1], x[3, 4], x[:, 2]],
    "index_slice": lambda x: [x[2:6], x[:, ::3], x[::-1], x[..., :4], x[None]],
    "index_array": lambda x: [x[jnp.array([0, 3])], x[:, np.array([1, 2])]],
    "index_mask": lambda x: x[np.arange(8) % 2 == 0],
    "set": lambda x: [x.at[0].set(1.0), x.at[:, 3].add(2.0), x.at[1, 2].multiply(5.0)],
    "reductions": lambda x: [x.sum(), x.sum(0), x.mean(1), x.max(1, keepdims=True), x.std()],
    "arg_reductions": lambda x: [x.argmax(), x.argmin(1), jnp.argsort(x, axis=0)],
    "cumulative": lambda x: [jnp.cumsum(x, 0), jnp.cumsum(x, 1), jnp.sort(x, axis=1)],
    "shape": lambda x: [x.T, x.reshape(4, 24), x.reshape(-1), x.ravel(), x[None], x.swapaxes(0, 1)],
    "join": lambda x: [jnp.concatenate([x, x]), jnp.stack([x, x]), jnp.vstack([x, x])],
    "split": lambda x: jnp.split(x, 2) + jnp.split(x, 2, axis=1),
    "pad_tile": lambda x: [jnp.pad(x, 1), jnp.tile(x, (1, 2)), jnp.repeat(x, 2, axis=0)],
    "cast": lambda x: [x.astype(jnp.int32), x.astype(jnp.bfloat16), x.view(jnp.int32)],
    "linear_algebra": lambda x: [jnp.dot(x, x.T), jnp.einsum("ij,kj->ik", x, x), jnp.outer(x, x)],
    "norm_softmax": lambda x: [jnp.linalg.norm(x), jax.nn.softmax(x), jax.nn.relu(x - 9)],
    "one_hot": lambda x: [jax.nn.one_hot(x[0].astype(int), 4), jnp.eye(8) @ x],
    "convolution": lambda x: jax.lax.conv(x[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME"),
    "roll_flip": lambda x: [jnp.roll(x, 1, 0), jnp.flip(x), jnp.diff(x)],
    "like": lambda x: [jnp.zeros_like(x), jnp.ones_like(x), jnp.full_like(x, 3)],
    "equal": lambda x: [bool(jnp.array_equal(x, x)), bool(jnp.allclose(x, x))],
    "trees": lambda x: jax.tree.map(jnp.add, {"a": x, "b": [x]}, {"a": x, "b": [x * 2]}),
    "linspace_take": lambda x: [jnp.take(x, 3, axis=1), jnp.take_along_axis(x, x.argsort(1), 1)],
}.items():
    for layout, spec in {"rows": ROWS, "columns": COLUMNS, "both": BOTH, "replicated": P()}.items():
        add_eager(f"{name}_{layout}", function, spec)

add_eager("add_rows_to_columns", lambda x, y: x + y, ROWS, COLUMNS)
add_eager("add_columns_to_rows", lambda x, y: x + y, COLUMNS, ROWS)
add_eager("multiply_both_ways", lambda x, y: [x @ y.T, y @ x.T], ROWS, COLUMNS)
add_eager("in_place_loop", lambda x: [x := x + i for i in range(3)][-1], BOTH)
