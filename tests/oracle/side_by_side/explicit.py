"""Explicit axes: shardings in types, and JAX's own refusals where they do not fit."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, auto_axes, explicit_axes, reshard
from jax.sharding import PartitionSpec as P

from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def mesh():
    return jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)


def on(*entries, shape=(4, 8)):
    x = np.arange(float(np.prod(shape))).reshape(shape)
    return jax.device_put(x, NamedSharding(mesh(), P(*entries)))


def explicit(function):
    """Add a program that runs with the mesh set."""

    def run():
        with jax.set_mesh(mesh()):
            return function()

    run.__name__ = function.__name__
    return program(run)


@program
def types_of_arrays():
    return [str(jax.typeof(on("X", "Y"))), str(jax.typeof(on())), str(jax.typeof(jnp.ones(2)))]


@explicit
def types_with_mesh_set():
    x = jnp.ones((4, 8))
    y = reshard(x, P("X"))
    return [str(jax.typeof(x)), str(jax.typeof(y)), y, jax.sharding.get_abstract_mesh().shape]


@explicit
def made_sharded():
    return [
        jnp.zeros((4, 8), out_sharding=P("X", "Y")),
        jnp.ones((4, 8), device=NamedSharding(mesh(), P("X"))),
        jax.device_put(np.arange(8.0), P("Y")),
        jnp.arange(8, out_sharding=P("X")) if _takes_out_sharding(jnp.arange) else 0,
    ]


def _takes_out_sharding(function):
    return "out_sharding" in (function.__doc__ or "")


@explicit
def added():
    x = reshard(np.arange(4.0)[:, None], P("X", None))
    y = reshard(np.arange(8.0)[None, :], P(None, "Y"))
    z = x + y
    return z, str(jax.typeof(z))


@explicit
def added_ambiguously():
    return on("X", None) + on("Y", None)


@explicit
def multiplied():
    return on("X", None) @ on(None, "Y", shape=(8, 4))


@explicit
def multiplied_ambiguously():
    return on(None, "X") @ on("X", None, shape=(8, 4))


@explicit
def multiplied_with_out_sharding():
    x, y = on("X", "Y"), on("Y", None, shape=(8, 4))
    return jnp.einsum("ij,jk->ik", x, y, out_sharding=P("X", None))


@explicit
def typed_inside_jit():
    seen = []

    @jax.jit
    def f(x):
        y = jnp.sin(x) * 2
        seen.append(str(jax.typeof(y)))
        return y.sum(0)

    out = f(on("X", "Y"))
    return seen, out, str(jax.typeof(out))


@explicit
def resharded_inside_jit():
    return jax.jit(lambda x: reshard(x, P(None, "Y")) * 2)(on("X", "Y"))


@program
def resharded_without_mesh():
    return reshard(on("X"), NamedSharding(mesh(), P(None, "Y")))


@explicit
def transposed_and_reduced():
    x = on("X", "Y")
    return [x.T, x.sum(1), x.max(), x[0], x[:, 1], jnp.expand_dims(x, 0), x.mean(axis=0)]


@explicit
def reshaped_ambiguously():
    return on("X", "Y").reshape(32)


@explicit
def reshaped_with_out_sharding():
    return jax.lax.reshape(on("X", "Y"), (32,), out_sharding=P("X"))


@explicit
def gathered():
    return on("X", "Y").at[jnp.array([0, 2])].get(out_sharding=P("X", None))


@explicit
def gathered_ambiguously():
    return on("X", "Y")[jnp.array([0, 2])]


@explicit
def automatic_inside():
    @auto_axes
    def f(x):
        return jax.lax.with_sharding_constraint(x * 2, P(None, "Y"))

    return f(on("X", "Y"), out_sharding=P("X", "Y"))


@explicit
def automatic_type_inside():
    seen = []

    @auto_axes
    def f(x):
        seen.append(str(jax.typeof(x)))
        return x @ x.T

    return f(on("X", "Y"), out_sharding=P("X")), seen


@program
def explicit_inside_auto():
    auto = jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Auto,) * 2)

    @jax.jit
    def f(x):
        @explicit_axes(axes=("X", "Y"), in_sharding=P("X", None))
        def g(y):
            return y * 2, jnp.zeros(3)

        return g(x)[0]

    with jax.set_mesh(auto):
        return f(jnp.ones((4, 8)))


@explicit
def gradient():
    def loss(w, x):
        return jnp.sum((x @ w) ** 2)

    w, x = on(None, "Y", shape=(8, 4)) / 32, on("X", None) / 32
    grad = jax.jit(jax.grad(loss))(w, x)
    return grad, str(jax.typeof(grad))


@explicit
def vectorised():
    return jax.vmap(lambda row: row * 2)(on("X", "Y"))


@explicit
def scanned():
    return jax.lax.scan(lambda c, row: (c + row, row.sum()), jnp.zeros(8), on(None, None))


@explicit
def indivisible():
    return jax.device_put(np.ones(6), P("Y"))


@explicit
def constraint_is_an_assertion():
    return jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("Y")))(on("X", None))


@explicit
def broadcast_and_concatenate():
    x = on("X", None)
    return jnp.concatenate([x, x], axis=1), jnp.stack([x, x]), jnp.broadcast_to(x, (3, 4, 8))


@program
def mixed_axis_types():
    mesh = jax.make_mesh((2, 4), ("E", "A"), axis_types=(AxisType.Explicit, AxisType.Auto))
    with jax.set_mesh(mesh):
        x = jax.device_put(np.ones((4, 8)), P("E", "A"))
        y = jax.jit(lambda x: x * 2)(x)
        return x, y, str(jax.typeof(y))


@program
def mesh_set_globally():
    jax.set_mesh(mesh())
    try:
        return jnp.ones(4) + 1, jax.device_put(np.ones(4), P("X"))
    finally:
        jax.set_mesh(None)


@explicit
def einsum_and_outer():
    a, b = on("X", shape=(4,)), on("Y", shape=(8,))
    return jnp.einsum("i,j->ij", a, b)


@explicit
def random_out_sharding():
    return jax.random.uniform(jax.random.key(0), (4, 8), out_sharding=P("X", "Y"))
