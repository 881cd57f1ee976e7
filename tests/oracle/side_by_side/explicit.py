"""Explicit axes: shardings in types, and JAX's own errors if they do not match."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, auto_axes, explicit_axes, reshard
from jax.sharding import PartitionSpec as P

from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def make_explicit_mesh():
    return jax.make_mesh((2, 4), ("X", "Y"), axis_types=(AxisType.Explicit,) * 2)


def put_array(*entries, shape=(4, 8)):
    x = np.arange(float(np.prod(shape))).reshape(shape)
    return jax.device_put(x, NamedSharding(make_explicit_mesh(), P(*entries)))


def explicit(function):
    """Add a program that runs with the mesh set."""

    def run():
        with jax.set_mesh(make_explicit_mesh()):
            return function()

    run.__name__ = function.__name__
    return program(run)


@program
def types_of_arrays():
    return [
        str(jax.typeof(put_array("X", "Y"))),
        str(jax.typeof(put_array())),
        str(jax.typeof(jnp.ones(2))),
    ]


@explicit
def types_with_mesh_set():
    x = jnp.ones((4, 8))
    y = reshard(x, P("X"))
    return [str(jax.typeof(x)), str(jax.typeof(y)), y, jax.sharding.get_abstract_mesh().shape]


@explicit
def arrays_made_with_sharding():
    return [
        jnp.zeros((4, 8), out_sharding=P("X", "Y")),
        jnp.ones((4, 8), device=NamedSharding(make_explicit_mesh(), P("X"))),
        jax.device_put(np.arange(8.0), P("Y")),
        jnp.arange(8, out_sharding=P("X")) if _takes_out_sharding(jnp.arange) else 0,
    ]


def _takes_out_sharding(function):
    return "out_sharding" in (function.__doc__ or "")


@explicit
def add_rows_and_columns():
    x = reshard(np.arange(4.0)[:, None], P("X", None))
    y = reshard(np.arange(8.0)[None, :], P(None, "Y"))
    z = x + y
    return z, str(jax.typeof(z))


@explicit
def add_with_conflicting_shardings():
    return put_array("X", None) + put_array("Y", None)


@explicit
def matmul_of_sharded_operands():
    return put_array("X", None) @ put_array(None, "Y", shape=(8, 4))


@explicit
def matmul_with_sharded_contraction():
    return put_array(None, "X") @ put_array("X", None, shape=(8, 4))


@explicit
def einsum_with_out_sharding():
    x, y = put_array("X", "Y"), put_array("Y", None, shape=(8, 4))
    return jnp.einsum("ij,jk->ik", x, y, out_sharding=P("X", None))


@explicit
def types_inside_jit():
    types = []

    @jax.jit
    def f(x):
        y = jnp.sin(x) * 2
        types.append(str(jax.typeof(y)))
        return y.sum(0)

    out = f(put_array("X", "Y"))
    return types, out, str(jax.typeof(out))


@explicit
def reshard_inside_jit():
    return jax.jit(lambda x: reshard(x, P(None, "Y")) * 2)(put_array("X", "Y"))


@program
def reshard_without_mesh():
    return reshard(put_array("X"), NamedSharding(make_explicit_mesh(), P(None, "Y")))


@explicit
def transpose_and_reductions():
    x = put_array("X", "Y")
    return [x.T, x.sum(1), x.max(), x[0], x[:, 1], jnp.expand_dims(x, 0), x.mean(axis=0)]


@explicit
def reshape_without_out_sharding():
    return put_array("X", "Y").reshape(32)


@explicit
def reshape_with_out_sharding():
    return jax.lax.reshape(put_array("X", "Y"), (32,), out_sharding=P("X"))


@explicit
def gather_with_out_sharding():
    return put_array("X", "Y").at[jnp.array([0, 2])].get(out_sharding=P("X", None))


@explicit
def gather_without_out_sharding():
    return put_array("X", "Y")[jnp.array([0, 2])]


@explicit
def auto_axes_with_constraint():
    @auto_axes
    def f(x):
        return jax.lax.with_sharding_constraint(x * 2, P(None, "Y"))

    return f(put_array("X", "Y"), out_sharding=P("X", "Y"))


@explicit
def auto_axes_types():
    types = []

    @auto_axes
    def f(x):
        types.append(str(jax.typeof(x)))
        return x @ x.T

    return f(put_array("X", "Y"), out_sharding=P("X")), types


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

    w, x = put_array(None, "Y", shape=(8, 4)) / 32, put_array("X", None) / 32
    grad = jax.jit(jax.grad(loss))(w, x)
    return grad, str(jax.typeof(grad))


@explicit
def vmap_over_a_sharded_dim():
    return jax.vmap(lambda row: row * 2)(put_array("X", "Y"))


@explicit
def scan_over_replicated_rows():
    return jax.lax.scan(lambda c, row: (c + row, row.sum()), jnp.zeros(8), put_array(None, None))


@explicit
def indivisible():
    return jax.device_put(np.ones(6), P("Y"))


@explicit
def constraint_is_an_assertion():
    return jax.jit(lambda x: jax.lax.with_sharding_constraint(x, P("Y")))(put_array("X", None))


@explicit
def broadcast_and_concatenate():
    x = put_array("X", None)
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
    jax.set_mesh(make_explicit_mesh())
    try:
        return jnp.ones(4) + 1, jax.device_put(np.ones(4), P("X"))
    finally:
        jax.set_mesh(None)


@explicit
def einsum_and_outer():
    a, b = put_array("X", shape=(4,)), put_array("Y", shape=(8,))
    return jnp.einsum("i,j->ij", a, b)


@explicit
def random_out_sharding():
    return jax.random.uniform(jax.random.key(0), (4, 8), out_sharding=P("X", "Y"))


@program
def type_after_a_move_to_one_device():
    x = put_array("X", "Y")
    device, *others = jax.devices()
    moved = jax.device_put(x, device)
    placed = jax.device_put(x, jax.sharding.SingleDeviceSharding(device))
    arrays = [moved, jax.device_put(moved, others[3]), jax.device_put(moved), placed, placed + 1]
    return [*arrays, *(str(jax.typeof(array)) for array in arrays)]


@program
def sine_of_an_array_moved_to_one_device():
    return jnp.sin(jax.device_put(put_array("X", "Y"), jax.devices()[0]))


@program
def dot_of_an_array_moved_to_one_device():
    moved = jax.device_put(put_array("X", "Y", shape=(8, 8)), jax.devices()[0])
    return jnp.dot(moved, moved)


@explicit
def dot_of_an_array_moved_to_one_device_with_mesh_set():
    moved = jax.device_put(put_array("X", "Y", shape=(8, 8)), jax.devices()[0])
    return jnp.dot(moved, moved)
