"""jit with shardings, constraints, and the errors of both."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from side_by_side.placement import mesh_2x4, put
from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def named_sharding(*entries):
    return NamedSharding(mesh_2x4(), P(*entries))


# ---------------------------------------------------------------------------------------- shardings


@program
def in_and_out_shardings():
    f = jax.jit(
        lambda x, w: x @ w,
        in_shardings=(named_sharding("data"), named_sharding(None, "model")),
        out_shardings=named_sharding("data", "model"),
    )
    return f(np.arange(32.0).reshape(4, 8), np.arange(64.0).reshape(8, 8))


@program
def out_shardings_tree():
    f = jax.jit(
        lambda x: {"a": x + 1, "b": (x * 2, x.sum())},
        out_shardings={
            "a": named_sharding("data"),
            "b": (named_sharding(None, "model"), named_sharding()),
        },
    )
    return f(jnp.ones((4, 8)))


@program
def out_shardings_prefix_and_none():
    f = jax.jit(lambda x: (x + 1, {"u": x, "v": x}), out_shardings=(None, named_sharding("model")))
    return f(put(P("data")))


@program
def in_shardings_none():
    return jax.jit(lambda x, y: x + y, in_shardings=(named_sharding("data"), None))(
        jnp.ones((4, 2)), jnp.arange(2.0)
    )


@program
def spec_shardings_under_set_mesh():
    with jax.set_mesh(mesh_2x4()):
        f = jax.jit(lambda x: x * 2, in_shardings=P("data"), out_shardings=P(None, "model"))
        return f(np.arange(32.0).reshape(4, 8))


@program
def spec_shardings_under_with_mesh():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mesh_2x4():
            f = jax.jit(lambda x: x * 2, in_shardings=P("data"), out_shardings=P(None, "model"))
            return f(np.arange(32.0).reshape(4, 8))


@program
def spec_shardings_without_mesh():
    return jax.jit(lambda x: x, out_shardings=P("data"))(jnp.ones(4))


@program
def init_with_out_shardings():
    f = jax.jit(
        lambda key: {"w": jax.random.normal(key, (8, 4)), "b": jnp.zeros(4)},
        out_shardings={"w": named_sharding("data", "model"), "b": named_sharding("model")},
    )
    return f(jax.random.key(0))


@program
def nothing_in():
    return jax.jit(lambda: jnp.arange(8.0), out_shardings=named_sharding("model"))()


@program
def mismatched_in_sharding():
    return jax.jit(lambda x: x, in_shardings=named_sharding("model"))(put(P("data")))


@program
def indivisible_out_sharding():
    return jax.jit(lambda x: x, out_shardings=named_sharding("model"))(jnp.ones(6))


@program
def indivisible_in_sharding():
    return jax.jit(lambda x: x, in_shardings=named_sharding("model"))(jnp.ones(6))


@program
def different_devices():
    half = Mesh(jax.devices()[:4], ("x",))
    operand = jax.device_put(jnp.ones((8, 12)), NamedSharding(half, P("x")))
    return jax.jit(jnp.add)(put(P("data")), operand)


@program
def different_devices_eagerly():
    half = Mesh(jax.devices()[:4], ("x",))
    operand = jax.device_put(jnp.ones((8, 12)), NamedSharding(half, P("x")))
    return put(P("data")) + operand


@program
def different_device_order():
    reversed_mesh = Mesh(np.array(jax.devices())[::-1], ("x",))
    operand = jax.device_put(jnp.ones((8, 12)), NamedSharding(reversed_mesh, P("x")))
    return put(P("data")) + operand


@program
def different_single_devices():
    a, b = (jax.device_put(jnp.ones(2), d) for d in jax.devices()[:2])
    return a + b


@program
def two_meshes_over_the_same_devices():
    flat = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    return put(P("data")) + jax.device_put(jnp.ones((8, 12)), NamedSharding(flat, P("x")))


@program
def committed_and_uncommitted():
    x = put(P("data"))
    return [x + 1, x + np.ones(12), x * jnp.arange(12.0), 2 - x, x + x]


@program
def unused_argument_elsewhere():
    operand = jax.device_put(jnp.ones(2), jax.devices()[3])
    return jax.jit(lambda x, unused: x + 1)(put(P("data")), operand)


@program
def on_one_device():
    x = jax.device_put(jnp.arange(4.0), jax.devices()[6])
    return x * 2, jax.jit(lambda x: (x.sum(), jnp.ones(3)))(x)


@program
def mesh_of_one_device():
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    x = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, P("data", "model")))
    return x, x + 1, jax.jit(jnp.sum)(x)


@program
def uncommitted():
    x = jnp.arange(3.0)
    return x, x + 1, jnp.dot(x, x), jnp.ones((2, 2)) @ jnp.ones((2, 2))


# -------------------------------------------------------------------------------------- constraints


@program
def constraint_eagerly():
    x = jax.lax.with_sharding_constraint(jnp.ones((4, 8)), named_sharding("data"))
    return x, jax.lax.with_sharding_constraint(x, named_sharding(None, "model"))


@program
def constraint_in_jit():
    @jax.jit
    def f(x):
        y = jax.lax.with_sharding_constraint(x * 2, named_sharding(None, "model"))
        return y, y + 1, y.sum(0)

    return f(put(P("data")))


@program
def constraint_with_spec_under_set_mesh():
    with jax.set_mesh(mesh_2x4()):
        f = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("data", "model")))
        return f(np.ones((4, 8)))


@program
def constraint_on_indivisible_axis():
    f = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, named_sharding("model")) + 1)
    return f(jnp.arange(6.0))


@program
def constraint_on_wrong_mesh():
    half = Mesh(jax.devices()[:4], ("x",))
    f = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, NamedSharding(half, P("x"))))
    return f(put(P("data")))


@program
def constraint_with_unknown_axis():
    with jax.set_mesh(mesh_2x4()):
        return jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("dta")))(np.ones((4, 8)))


@program
def constraint_too_long():
    f = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, named_sharding("data", "model")))
    return f(jnp.ones(8))


@program
def constraint_without_mesh():
    return jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("data")))(jnp.ones(8))


# -------------------------------------------------------------- caching, donation, static arguments


@program
def donated_input():
    x = put(P("data"))
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return y, x.is_deleted()


@program
def donated_input_used_again():
    x = put(P("data"))
    jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    return np.asarray(x)  # x + 1 ends the process on 8 host devices with JAX 0.10.2


@program
def donated_by_name():
    state = {"w": put(P("data")), "n": jax.device_put(jnp.ones(4), named_sharding())}
    f = jax.jit(lambda state, g: jax.tree.map(lambda s: s - g, state), donate_argnames="state")
    out = f(state, 0.5)
    return out, [x.is_deleted() for x in jax.tree.leaves(state)]


@program
def static_arguments():
    f = jax.jit(
        lambda x, n, *, flag: x * n if flag else x, static_argnums=1, static_argnames="flag"
    )
    return f(put(P("data")), 3, flag=True), f(put(P("data")), 3, flag=False)


@program
def traced_once():
    traces = []

    @jax.jit
    def f(x):
        traces.append(x.shape)
        return x * 2

    for _ in range(3):
        f(put(P("data")))
    n_same = len(traces)
    f(put(P("model")))
    f(jnp.ones(3))
    f(jnp.ones(3))
    return n_same, len(traces)


@program
def closed_over_array():
    w = put(P(None, "model"))
    return jax.jit(lambda x: x + w)(jnp.ones((8, 12))), jax.jit(lambda x: x + w)(put(P("data")))


@program
def device_count_while_tracing():
    return jax.jit(lambda x: x / jax.device_count())(jnp.ones(2))


@program
def jit_in_jit():
    inner = jax.jit(lambda x: x * 2, out_shardings=named_sharding(None, "model"))
    return jax.jit(lambda x: inner(x) + 1)(put(P("data")))


@program
def disabled_jit():
    with jax.disable_jit():
        return jax.jit(lambda x: x * 2)(put(P("data")))


@program
def checked_for_nan():
    with jax.debug_nans(True):
        return jax.jit(lambda x: jnp.log(x - 1000.0))(put(P("data")))


@program
def highest_precision():
    with jax.default_matmul_precision("highest"):
        return put(P("data"), (8, 8)) @ put(P(None, "model"), (8, 8))
