"""Programs whose output shardings the compiler chooses: Auto axes, nothing asked of the outputs."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from side_by_side.placing import mesh_2x4
from side_by_side.registry import Programs

PROGRAMS = Programs()


def on(spec, *shape):
    size = 1
    for n in shape:
        size *= n
    values = jnp.arange(float(size)).reshape(shape) / size
    return jax.device_put(values, NamedSharding(mesh_2x4(), spec))


def chosen(name, function, *args):
    """Add a program that returns where the compiler puts each output of jit(function)."""

    def run():
        outs = jax.jit(function)(*(on(*arg) for arg in args))
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
WHOLE = (P(), 8, 16)

# ------------------------------------------------------------------------------ dense layers
chosen("matmul", jnp.matmul, X, W)
chosen("matmul_two_layers", lambda x, w, v: jax.nn.relu(x @ w) @ v, X, W, V)
chosen("matmul_contracted_axis_sharded", jnp.matmul, (P(None, "model"), 8, 32), V)
chosen("matmul_axis_used_twice", jnp.matmul, (P("model"), 8, 16), W)
chosen("matmul_whole_times_sharded", jnp.matmul, WHOLE, W)
chosen("matmul_transposed", lambda x, w: (x @ w).T, X, W)
chosen("bias", lambda x, w, b: x @ w + b, X, W, (P("model"), 32))
chosen("bias_whole", lambda x, b: x + b, X, (P(), 16))
chosen(
    "einsum_heads", lambda x, w: jnp.einsum("bsd,dhk->bshk", x, w), B, (P(None, "model"), 16, 4, 8)
)
chosen("einsum_batch", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), B, (P("data"), 4, 16, 8))
chosen("gated", lambda x, w, u: jax.nn.silu(x @ w) * (x @ u), X, W, W)

# ------------------------------------------------------------------------------ elementwise
chosen("add_same", lambda x, y: x + y, X, X)
chosen("add_rows_and_columns", lambda x, y: x + y, X, (P(None, "model"), 8, 16))
chosen("add_columns_and_rows", lambda x, y: x + y, (P(None, "model"), 8, 16), X)
chosen("add_conflict", lambda x, y: x + y, (P("data"), 8, 16), (P("model"), 8, 16))
chosen("add_whole", lambda x, y: x + y, WHOLE, X2)
chosen("where", lambda x, y: jnp.where(x > 0.5, x, y), X, WHOLE)
chosen("broadcast_row", lambda x, r: x * r[None, :], X, (P("model"), 16))
chosen("outer", lambda a, b: a[:, None] * b[None, :], (P("data"), 8), (P("model"), 16))
chosen("cast", lambda x: x.astype(jnp.bfloat16), X2)
chosen("constants_only", lambda x: (jnp.ones((8, 16)), x), X)

# ------------------------------------------------------------------------------ reductions
chosen("sum_all", jnp.sum, X2)
chosen("sum_sharded_axis", lambda x: x.sum(0), X2)
chosen("sum_keepdims", lambda x: x.mean(1, keepdims=True), X2)
chosen("softmax", jax.nn.softmax, X2)
chosen("layer_norm", lambda x: (x - x.mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1), X2)
chosen("argmax", lambda x: x.argmax(-1), X2)
chosen("cumsum", lambda x: jnp.cumsum(x, 0), X2)
chosen("sort", lambda x: jnp.sort(x, 1), X2)
chosen("top_k", lambda x: lax.top_k(x, 2), X2)
chosen("logsumexp_loss", lambda x: (jax.nn.logsumexp(x, -1) - x[:, 0]).mean(), X2)

# ------------------------------------------------------------------------------ shape changes
chosen("transpose", lambda x: x.T, X2)
chosen("reshape_split", lambda x: x.reshape(8, 4, 4), X2)
chosen("reshape_merge", lambda x: x.reshape(128), X2)
chosen("reshape_merge_inner", lambda x: x.reshape(4, 128), B)
chosen("slice", lambda x: x[:4], X2)
chosen("slice_other_axis", lambda x: x[:, 4:8], X)
chosen("concatenate", lambda x, y: jnp.concatenate([x, y], 1), X, X)
chosen("concatenate_sharded_axis", lambda x, y: jnp.concatenate([x, y], 0), X, X)
chosen("stack", lambda x, y: jnp.stack([x, y]), X, X)
chosen("pad", lambda x: jnp.pad(x, ((0, 0), (1, 1))), X2)
chosen("expand_and_squeeze", lambda x: jnp.squeeze(x[:, None, :], 1), X2)
chosen("flip_and_roll", lambda x: (jnp.flip(x, 0), jnp.roll(x, 1, 1)), X2)
chosen("gather_rows", lambda x: x[jnp.array([0, 3, 5, 7])], X2)
chosen("embedding", lambda e: e[jnp.arange(8).reshape(2, 4)], (P("model", None), 32, 16))
chosen("embedding_columns", lambda e: e[jnp.arange(8)], (P(None, "model"), 32, 16))
chosen("set_row", lambda x: x.at[0].set(1.0), X2)
chosen("dynamic_slice", lambda x: lax.dynamic_slice(x, (0, 4), (8, 4)), X2)
chosen("tile_repeat", lambda x: (jnp.tile(x, (1, 2)), jnp.repeat(x, 2, 0)), X)
chosen("one_hot", lambda x: jax.nn.one_hot(x.argmax(-1), 8), X)

# --------------------------------------------------------------------- transformations, control
chosen("gradient", jax.grad(lambda w, x: ((x @ w) ** 2).mean()), W, X)
chosen("value_and_gradient", jax.value_and_grad(lambda w, x: jnp.tanh(x @ w).sum()), W, X)
chosen("sgd", lambda w, x: w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w), W, X)
chosen("vmap", jax.vmap(lambda row: row / (row.sum() + 1)), X2)
chosen("scan_rows", lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(16), x), X2)
chosen(
    "scan_layers",
    lambda x, ws: lax.scan(lambda x, w: (jnp.tanh(x @ w), x.sum()), x, ws),
    X,
    (P(None, None, "model"), 3, 16, 16),
)
chosen("fori_loop", lambda x: lax.fori_loop(0, 3, lambda i, x: x * 2, x), X2)
chosen("while_loop", lambda x: lax.while_loop(lambda x: x.sum() < 99, lambda x: x * 2, x), X2)
chosen("cond", lambda x: lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.T.T, x), X2)
chosen("remat", jax.grad(jax.checkpoint(lambda w, x: jnp.sin(x @ w).sum())), W, X)
chosen("constraint_back", lambda x: constrain(x, None, "model") * 2, X)
chosen("constraint_in_the_middle", lambda x, w: constrain(x @ w, "data") @ w.T, X, W)
chosen("constraint_whole", lambda x: constrain(x, None, None) + 1, X2)
chosen("constraint_pulls_inputs", lambda x: (y := jnp.sin(x), constrain(y * 2, "model")), WHOLE)
chosen(
    "attention",
    lambda q, k, v: jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v,
    (P("data", "model"), 4, 4, 8, 16),
    (P("data", "model"), 4, 4, 8, 16),
    (P("data", "model"), 4, 4, 8, 16),
)
chosen(
    "dot_product_attention",
    lambda q: jax.nn.dot_product_attention(q, q, q),
    (P("data", None, "model"), 4, 8, 4, 16),
)
chosen(
    "convolution",
    lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
    (P("data"), 8, 3, 8, 8),
    (P("model"), 4, 3, 3, 3),
)
chosen("random_like", lambda x: x + jax.random.normal(jax.random.key(0), x.shape), X2)
chosen("fft", lambda x: jnp.abs(jnp.fft.fft(x, axis=1)), X)
chosen("linalg", lambda x: jnp.linalg.norm(x, axis=1), X2)
chosen("iota", lambda x: x + jnp.arange(16), X2)
chosen(
    "shard_map_inside",
    lambda x: (
        jax.shard_map(
            lambda x: lax.psum(x, "data"), mesh=mesh_2x4(), in_specs=P("data"), out_specs=P()
        )(x)
        + 1
    ),
    X,
)
