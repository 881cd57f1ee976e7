"""Programs whose output shardings the compiler chooses: Auto axes, no out_shardings."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from side_by_side.placement import mesh_2x4
from side_by_side.registry import Programs

PROGRAMS = Programs()


def put_array(spec, *shape):
    size = 1
    for n in shape:
        size *= n
    values = jnp.arange(float(size)).reshape(shape) / size
    return jax.device_put(values, NamedSharding(mesh_2x4(), spec))


def add_program(name, function, *args):
    """Add a program that returns the sharding that the compiler chooses for each output."""

    def run():
        outs = jax.jit(function)(*(put_array(*arg) for arg in args))
        return [out.sharding for out in jax.tree.leaves(outs)]

    assert name not in PROGRAMS, name
    PROGRAMS[name] = run


def constrain(x, *entries):
    return lax.with_sharding_constraint(x, NamedSharding(mesh_2x4(), P(*entries)))


X = (P("data"), 8, 16)
X2 = (P("data", "model"), 8, 16)
W = (P(None, "model"), 16, 32)
V = (P("model", None), 32, 16)
B = (P("data", None, None), 4, 8, 16)
REPLICATED = (P(), 8, 16)

# ------------------------------------------------------------------------------ dense layers
add_program("matmul", jnp.matmul, X, W)
add_program("matmul_two_layers", lambda x, w, v: jax.nn.relu(x @ w) @ v, X, W, V)
add_program("matmul_contracted_dim_sharded", jnp.matmul, (P(None, "model"), 8, 32), V)
add_program("matmul_axis_used_twice", jnp.matmul, (P("model"), 8, 16), W)
add_program("matmul_replicated_times_sharded", jnp.matmul, REPLICATED, W)
add_program("matmul_transposed", lambda x, w: (x @ w).T, X, W)
add_program("bias", lambda x, w, b: x @ w + b, X, W, (P("model"), 32))
add_program("bias_replicated", lambda x, b: x + b, X, (P(), 16))
add_program(
    "einsum_heads", lambda x, w: jnp.einsum("bsd,dhk->bshk", x, w), B, (P(None, "model"), 16, 4, 8)
)
add_program("einsum_batch", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), B, (P("data"), 4, 16, 8))
add_program("gated", lambda x, w, u: jax.nn.silu(x @ w) * (x @ u), X, W, W)

# ------------------------------------------------------------------------------ elementwise
add_program("add_same", lambda x, y: x + y, X, X)
add_program("add_rows_and_columns", lambda x, y: x + y, X, (P(None, "model"), 8, 16))
add_program("add_columns_and_rows", lambda x, y: x + y, (P(None, "model"), 8, 16), X)
add_program("add_conflict", lambda x, y: x + y, (P("data"), 8, 16), (P("model"), 8, 16))
add_program("add_replicated", lambda x, y: x + y, REPLICATED, X2)
add_program("where", lambda x, y: jnp.where(x > 0.5, x, y), X, REPLICATED)
add_program("broadcast_row", lambda x, r: x * r[None, :], X, (P("model"), 16))
add_program("outer", lambda a, b: a[:, None] * b[None, :], (P("data"), 8), (P("model"), 16))
add_program("cast", lambda x: x.astype(jnp.bfloat16), X2)
add_program("constants_only", lambda x: (jnp.ones((8, 16)), x), X)

# ------------------------------------------------------------------------------ reductions
add_program("sum_all", jnp.sum, X2)
add_program("sum_sharded_dim", lambda x: x.sum(0), X2)
add_program("sum_keepdims", lambda x: x.mean(1, keepdims=True), X2)
add_program("softmax", jax.nn.softmax, X2)
add_program(
    "layer_norm", lambda x: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1), X2
)
add_program("argmax", lambda x: x.argmax(-1), X2)
add_program("cumsum", lambda x: jnp.cumsum(x, 0), X2)
add_program("sort", lambda x: jnp.sort(x, 1), X2)
add_program("top_k", lambda x: lax.top_k(x, 2), X2)
add_program("logsumexp_loss", lambda x: (jax.nn.logsumexp(x, -1) - x[:, 0]).mean(), X2)

# ------------------------------------------------------------------------------ shape changes
add_program("transpose", lambda x: x.T, X2)
add_program("reshape_split", lambda x: x.reshape(8, 4, 4), X2)
add_program("reshape_merge", lambda x: x.reshape(128), X2)
add_program("reshape_merge_inner", lambda x: x.reshape(4, 128), B)
add_program("slice", lambda x: x[:4], X2)
add_program("slice_unsharded_dim", lambda x: x[:, 4:8], X)
add_program("concatenate", lambda x, y: jnp.concatenate([x, y], 1), X, X)
add_program("concatenate_sharded_dim", lambda x, y: jnp.concatenate([x, y], 0), X, X)
add_program("stack", lambda x, y: jnp.stack([x, y]), X, X)
add_program("pad", lambda x: jnp.pad(x, ((0, 0), (1, 1))), X2)
add_program("expand_and_squeeze", lambda x: jnp.squeeze(x[:, None, :], 1), X2)
add_program("flip_and_roll", lambda x: (jnp.flip(x, 0), jnp.roll(x, 1, 1)), X2)
add_program("gather_rows", lambda x: x[jnp.array([0, 3, 5, 7])], X2)
add_program("embedding", lambda e: e[jnp.arange(8).reshape(2, 4)], (P("model", None), 32, 16))
add_program("embedding_columns", lambda e: e[jnp.arange(8)], (P(None, "model"), 32, 16))
add_program("set_row", lambda x: x.at[0].set(1.0), X2)
add_program("dynamic_slice", lambda x: lax.dynamic_slice(x, (0, 4), (8, 4)), X2)
add_program("tile_repeat", lambda x: (jnp.tile(x, (1, 2)), jnp.repeat(x, 2, 0)), X)
add_program("one_hot", lambda x: jax.nn.one_hot(x.argmax(-1), 8), X)

# --------------------------------------------------------------------- transformations, control
add_program("gradient", jax.grad(lambda w, x: ((x @ w) ** 2).mean()), W, X)
add_program("value_and_gradient", jax.value_and_grad(lambda w, x: jnp.tanh(x @ w).sum()), W, X)
add_program("sgd", lambda w, x: w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w), W, X)
add_program("vmap", jax.vmap(lambda row: row / (row.sum() + 1)), X2)
add_program("scan_rows", lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(16), x), X2)
add_program(
    "scan_layers",
    lambda x, ws: lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, ws),
    X,
    (P(None, None, "model"), 3, 16, 16),
)
add_program("fori_loop", lambda x: lax.fori_loop(0, 3, lambda i, x: x * 2, x), X2)
add_program("while_loop", lambda x: lax.while_loop(lambda x: x.sum() < 99, lambda x: x * 2, x), X2)
add_program("cond", lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.T.T, x), X2)
add_program("remat", jax.grad(jax.checkpoint(lambda w, x: jnp.sin(x @ w).sum())), W, X)
add_program("constraint_back", lambda x: constrain(x, None, "model") * 2, X)
add_program("constraint_in_the_middle", lambda x, w: constrain(x @ w, "data") @ w.T, X, W)
add_program("constraint_replicated", lambda x: constrain(x, None, None) + 1, X2)
add_program(
    "constraint_pulls_inputs", lambda x: (y := jnp.sin(x), constrain(y * 2, "model")), REPLICATED
)
add_program(
    "attention",
    lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v,
    (P("data", "model"), 4, 4, 8, 16),
    (P("data", "model"), 4, 4, 8, 16),
    (P("data", "model"), 4, 4, 8, 16),
)
add_program(
    "dot_product_attention",
    lambda q: jax.nn.dot_product_attention(q, q, q),
    (P("data", None, "model"), 4, 8, 4, 16),
)
add_program(
    "convolution",
    lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
    (P("data"), 8, 3, 8, 8),
    (P("model"), 4, 3, 3, 3),
)
add_program("random_like", lambda x: x + jax.random.normal(jax.random.key(0), x.shape), X2)
add_program("fft", lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), X)
add_program("linalg", lambda x: jnp.linalg.norm(x, axis=1), X2)
add_program("iota", lambda x: x + jnp.arange(16), X2)
add_program(
    "shard_map_inside",
    lambda x: (
        jax.shard_map(
            lambda x: lax.psum(x, "data"), mesh=mesh_2x4(), in_specs=P("data"), out_specs=P()
        )(x)
        + 1
    ),
    X,
)
