"""Transformations of sharded code, random numbers, and the stages of compilation."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from side_by_side.jits import named_sharding
from side_by_side.placement import put
from side_by_side.registry import Programs

PROGRAMS = program = Programs()


@program
def gradient():
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    w, x = put(P(None, "model"), (12, 8)) / 96, put(P("data")) / 96
    return jax.jit(jax.value_and_grad(loss))(w, x), jax.grad(loss)(w, x)


@program
def vmap_over_rows():
    return jax.vmap(lambda row: row / row.sum())(put(P("data")) + 1)


@program
def scan_over_rows():
    def step(carry, row):
        return carry + row, carry.sum()

    return jax.lax.scan(step, jnp.zeros(12), put(P(None, "model")))


@program
def scan_in_jit():
    ws = put(P(None, None, "model"), (3, 8, 8)) / 192

    @jax.jit
    def f(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    return f(put(P("data"), (4, 8)), ws)


@program
def remat_gradient():
    @functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    def f(w, x):
        return jnp.sin(x @ w).sum()

    return jax.jit(jax.grad(f))(put(P(None, "model"), (12, 8)) / 96, put(P("data")) / 96)


@program
def loops_and_branches():
    @jax.jit
    def f(x):
        x = jax.lax.fori_loop(0, 3, lambda i, x: x + i, x)
        x = jax.lax.while_loop(lambda x: x.sum() < 1e4, lambda x: x * 2, x)
        return jax.lax.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, x)

    return f(put(P("data", "model")))


@program
def custom_gradient():
    @jax.custom_vjp
    def f(x):
        return x * 2

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * x,))
    return jax.jit(jax.grad(lambda x: f(x).sum()))(put(P("data")))


@program
def vjp_and_jvp():
    x = put(P("data"))
    y, back = jax.vjp(lambda x: jnp.sin(x).sum(1), x)
    return y, back(y)[0], jax.jvp(jnp.sin, (x,), (x,))[1]


@program
def random_numbers():
    keys = jax.device_put(jax.random.split(jax.random.key(0), 8), named_sharding("data"))
    return [
        jax.jit(lambda k: jax.random.normal(k, (4, 8)), out_shardings=named_sharding("data"))(
            jax.random.key(1)
        ),
        jax.vmap(lambda k: jax.random.uniform(k, (2,)))(keys),
        jax.random.split(keys[0]),
        jax.jit(jax.random.fold_in)(keys[1], 3),
        jax.random.key_data(keys),
        jax.random.permutation(jax.random.key(2), put(P("data"))),
    ]


# -------------------------------------------------------------------------------- compiled stages


@program
def lowered_and_compiled():
    x = put(P("data"))
    f = jax.jit(lambda x, y: (x * y, x.sum()), out_shardings=(None, named_sharding()))
    compiled = f.lower(x, x).compile()
    results = compiled(x, x + 1)
    return [
        results,
        compiled.output_shardings,
        compiled.input_shardings,
        compiled.out_info[0].shape,
        f.lower(x, x).out_info[0].shape,
        f.trace(x, x).jaxpr.in_avals[0].shape,
    ]


@program
def compiled_from_shapes():
    struct = jax.ShapeDtypeStruct((8, 12), jnp.float32, sharding=named_sharding("data"))
    compiled = jax.jit(lambda x: x * 2).lower(struct).compile()
    return compiled(put(P("data")))


@program
def compiled_called_with_other_sharding():
    compiled = jax.jit(lambda x: x * 2).lower(put(P("data"))).compile()
    return compiled(put(P("model")))


@program
def compiled_called_with_other_shape():
    compiled = jax.jit(lambda x: x * 2).lower(put(P("data"))).compile()
    return compiled(put(P("data"), (4, 12)))


@program
def evaluated_shape():
    f = jax.jit(lambda x: x @ x.T, out_shardings=named_sharding("data"))
    out = jax.eval_shape(f, put(P("data")))
    return out.shape, str(out.dtype)


@program
def lowered_text():
    text = jax.jit(lambda x: x * 2).lower(put(P("data", "model"))).as_text()
    return [line.strip() for line in text.splitlines() if "sdy" in line]
