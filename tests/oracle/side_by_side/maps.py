"""shard_map in every form, inside and outside of jit, beside other sharded code."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from side_by_side.placement import mesh_2x4, put
from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def map_over_mesh(body, in_specs, out_specs, **kwargs):
    return jax.shard_map(body, mesh=mesh_2x4(), in_specs=in_specs, out_specs=out_specs, **kwargs)


@program
def outside_jit():
    return map_over_mesh(lambda x: jax.lax.psum(x, "data"), P("data", "model"), P(None, "model"))(
        jnp.arange(32.0).reshape(4, 8)
    )


@program
def outside_jit_on_sharded_input():
    f = map_over_mesh(
        lambda x: x * jax.lax.axis_index("model"), P("data", "model"), P("data", "model")
    )
    return f(put(P("data", "model"))), f(put(P()))


@program
def in_jit():
    @jax.jit
    def f(x):
        y = map_over_mesh(
            lambda x: jax.lax.psum(x.sum(), ("data", "model")), P("data", "model"), P()
        )(x)
        return x / y, y

    return f(put(P("data")))


@program
def in_jit_with_out_shardings():
    f = map_over_mesh(
        lambda x: jax.lax.all_gather(x, "data", tiled=True), P("data"), P(), check_vma=False
    )
    return jax.jit(f, out_shardings=NamedSharding(mesh_2x4(), P("model")))(put(P("data")))


@program
def as_decorator():
    @jax.jit
    @functools.partial(
        jax.shard_map,
        mesh=mesh_2x4(),
        in_specs=(P("data", None), P(None, "model")),
        out_specs=P("data", "model"),
    )
    def matmul(x, w):
        return x @ w

    return matmul(jnp.arange(32.0).reshape(4, 8), jnp.arange(64.0).reshape(8, 8))


@program
def with_mesh_in_context():
    with jax.set_mesh(mesh_2x4()):
        f = jax.shard_map(lambda x: x + 1, in_specs=P("data"), out_specs=P("data"))
        return f(np.arange(8.0)), jax.jit(f)(np.arange(8.0))


@program
def from_jax_experimental():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from jax.experimental.shard_map import shard_map

        f = shard_map(
            lambda x: jax.lax.psum(x, "model"),
            mesh=mesh_2x4(),
            in_specs=P("data", "model"),
            out_specs=P("data"),
        )
        return f(jnp.arange(32.0).reshape(4, 8))


@program
def explicit_axes():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(np.arange(16.0), P("i"))
        y = jax.shard_map(lambda x: jax.lax.psum(x, "i"), in_specs=P("i"), out_specs=P())(x)
        return y, str(jax.typeof(y))


@program
def explicit_axes_and_wrong_input():
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(np.arange(16.0), P())
        return jax.shard_map(lambda x: x, in_specs=P("i"), out_specs=P("i"))(x)


@program
def partly_manual():
    f = map_over_mesh(
        lambda x: jax.lax.psum(x * 2, "data"),
        P("data"),
        P(),
        axis_names={"data"},
    )
    return jax.jit(f)(put(P("data", "model")))


@program
def gradient_through():
    @jax.jit
    def loss(w, x):
        def body(w, x):
            return jax.lax.pmean(jnp.mean((x @ w) ** 2), "data")

        return map_over_mesh(body, (P(), P("data")), P())(w, x)

    return jax.grad(loss)(jnp.ones((12, 3)) / 36, put(P("data")) / 96)


@program
def ring():
    def body(x):
        return jax.lax.ppermute(x, "model", [(i, (i + 1) % 4) for i in range(4)])

    return map_over_mesh(body, P(None, "model"), P(None, "model"))(put(P(None, "model")))


@program
def permuted_devices():
    mesh = Mesh(np.array(jax.devices())[::-1].reshape(2, 4), ("a", "b"))
    f = jax.shard_map(
        lambda x: x + jax.lax.axis_index("b"),
        mesh=mesh,
        in_specs=P("a", "b"),
        out_specs=P("a", "b"),
    )
    return f(np.zeros((2, 4)))


@program
def subset_of_the_devices():
    mesh = Mesh(jax.devices()[2:6], ("x",))
    f = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    return f(np.arange(8.0)), jax.jit(f)(np.arange(8.0))


@program
def random_per_device():
    def body(key, x):
        key = jax.random.fold_in(key, jax.lax.axis_index("data"))
        return x + jax.random.normal(key, x.shape)

    return jax.jit(map_over_mesh(body, (P(), P("data")), P("data")))(
        jax.random.key(0), np.zeros((4, 3))
    )


@program
def keys_as_input():
    keys = jax.random.split(jax.random.key(0), 8)
    f = map_over_mesh(
        lambda k: jax.vmap(lambda k: jax.random.uniform(k, (3,)))(k), P("data"), P("data")
    )
    return f(keys)


@program
def inside_scan():
    step = map_over_mesh(lambda c, x: jax.lax.psum(c * x, "data"), (P(), P("data")), P())

    @jax.jit
    def f(xs):
        return jax.lax.scan(lambda c, x: (step(c, x).reshape(()) / 100, c), jnp.array(1.0), xs)

    return f(jnp.arange(1.0, 7.0).reshape(3, 2))


@program
def wrong_axis_name():
    mesh = Mesh(jax.devices(), ("data",))
    return jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("date"), out_specs=P())(np.zeros(8))


@program
def indivisible_input():
    return map_over_mesh(lambda x: x, P("model"), P("model"))(np.zeros(6))


@program
def output_not_replicated():
    return map_over_mesh(lambda x: x, P("data"), P())(np.zeros(8))


@program
def an_abstract_mesh_takes_its_devices_from_the_argument():
    f = jax.shard_map(
        lambda x: jax.lax.psum(x, "data"),
        mesh=mesh_2x4().abstract_mesh,
        in_specs=P("data", "model"),
        out_specs=P(None, "model"),
    )
    return f(put(np.arange(32.0).reshape(4, 8), "data", None))


@program
def an_abstract_mesh_without_devices():
    mesh = mesh_2x4().abstract_mesh
    return jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(
        np.zeros(8)
    )


@program
def an_abstract_mesh_and_an_argument_on_another_mesh():
    mesh = jax.make_mesh((8,), ("all",), axis_types=(AxisType.Auto,)).abstract_mesh
    f = jax.shard_map(lambda x: x, mesh=mesh, in_specs=P("all"), out_specs=P("all"))
    return f(put(np.zeros((8, 2)), "data", None))


@program
def wrong_number_of_specs():
    return map_over_mesh(lambda x, y: x + y, (P("data"),), P("data"))(np.zeros(8), np.zeros(8))


@program
def trees():
    f = map_over_mesh(
        lambda t: {"s": jax.lax.psum(t["x"], "data"), "y": t["y"] * 2},
        ({"x": P("data"), "y": P("model")},),
        {"s": P(), "y": P("model")},
    )
    return f({"x": np.arange(4.0), "y": np.arange(8.0)})


@program
def two_in_sequence():
    x = put(P("data", "model"))
    y = map_over_mesh(
        lambda x: jax.lax.all_gather(x, "model", axis=1, tiled=True),
        P("data", "model"),
        P("data"),
        check_vma=False,
    )(x)
    z = map_over_mesh(
        lambda y: jax.lax.psum_scatter(y, "data", tiled=True), P(None, "model"), P("data", "model")
    )(y)
    return y, z, y + 1


@program
def compiled_ahead_of_time():
    f = jax.jit(map_over_mesh(lambda x: jax.lax.psum(x, "data"), P("data"), P()))
    return f.lower(put(P("data"))).compile()(put(P("data")))


@program
def lowered_text():
    f = jax.jit(map_over_mesh(lambda x: jax.lax.psum(x, "data"), P("data"), P()))
    text = f.lower(put(P("data"))).as_text()
    return ["sdy.manual_computation" in text, text.count("all_reduce")]
