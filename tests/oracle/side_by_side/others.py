"""pmap, callbacks, prints, visualizations, and other parts of JAX that read devices."""

import contextlib
import io
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback, mesh_utils, multihost_utils
from jax.experimental import pallas as pl
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from side_by_side.placement import mesh_2x4, put
from side_by_side.registry import Programs

PROGRAMS = program = Programs()


def capture_output(function):
    """Return the output of a function and of its callbacks."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        function()
        jax.effects_barrier()
    return out.getvalue()


@program
def pmap_sum():
    f = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")
    out = f(jnp.arange(16.0).reshape(8, 2))
    return np.asarray(out), out.shape


@program
def pmap_of_too_many():
    return np.asarray(jax.pmap(lambda x: x)(jnp.ones((9, 2))))


@program
def debug_print_in_jit():
    f = jax.jit(lambda x: jax.debug.print("total {t:.1f} of {n}", t=x.sum(), n=x.shape[0]))
    return capture_output(lambda: f(put(P("data"))))


@program
def debug_print_ordered():
    def f(x):
        jax.debug.print("a {}", x.sum(), ordered=True)
        jax.debug.print("b {}", x.max(), ordered=True)

    return capture_output(lambda: jax.jit(f)(jnp.arange(4.0)))


@program
def visualized_array():
    return capture_output(
        lambda: jax.debug.visualize_array_sharding(put(P("data", "model")), use_color=False)
    )


@program
def visualized_sharding():
    sharding = NamedSharding(mesh_2x4(), P(None, "model"))
    return capture_output(lambda: jax.debug.visualize_sharding((8, 8), sharding, use_color=False))


@program
def pure_callback():
    def f(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda x: np.asarray(x) * 2, shape, x)

    return jax.jit(f)(jnp.arange(4.0)), f(jnp.arange(3.0))


@program
def io_callback_counts():
    sums = []
    f = jax.jit(lambda x: io_callback(lambda x: sums.append(float(x)), None, x.sum()))
    f(jnp.arange(4.0))
    jax.effects_barrier()
    return sums


@program
def multihost_helpers():
    x = put(P("data"))
    return multihost_utils.process_allgather(x, tiled=True), multihost_utils.broadcast_one_to_all(3)


@program
def hybrid_mesh():
    return mesh_utils.create_hybrid_device_mesh((2, 4), (1, 1)).shape


@program
def pallas_interpreted():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    shape = jax.ShapeDtypeStruct((8,), jnp.float32)
    return pl.pallas_call(kernel, out_shape=shape, interpret=True)(jnp.arange(8.0))


@program
def live_arrays():
    x = put(P("data"))
    return any(a is x for a in jax.live_arrays())


@program
def checkify_in_jit():
    from jax.experimental import checkify

    f = checkify.checkify(lambda x: checkify.check(x.sum() > 1e6, "too small: {t}", t=x.sum()))
    error, _ = jax.jit(f)(put(P("data")))
    return error.get()


@program
def implicit_transfer():
    with jax.transfer_guard("allow"):
        return put(P("data")) + np.ones(12, np.float32)


@program
def export_of_a_sharded_jit():
    from jax import export

    x = put(P("data"))
    out = export.export(jax.jit(lambda x: x * 2))(x)
    return [out.nr_devices, [str(a) for a in out.in_avals]]


@program
def sparse_and_linear_solve():
    a = jax.device_put(np.eye(8, dtype=np.float32) * 2 + 0.1, NamedSharding(mesh_2x4(), P("data")))
    return jnp.linalg.solve(a, jnp.ones(8)), jnp.linalg.inv(a)


@program
def custom_partitioning_free_functions():
    return jax.nn.logsumexp(put(P("data")), axis=1), jax.scipy.special.erf(put(P(None, "model")))


@program
def double_precision():
    with jax.enable_x64(True):
        return put(P("data")) + np.float64(1e-12), jnp.arange(3)


@program
def inspect_array_sharding_in_a_jit():
    shardings = []

    @jax.jit
    def f(x):
        y = x * 2
        jax.debug.inspect_array_sharding(y, callback=shardings.append)
        z = jax.nn.relu(y @ y.T)
        jax.debug.inspect_array_sharding((x, z), callback=shardings.append)
        return z.sum(0)

    out = f(put(P("data", "model")))
    f(put(P("data", "model")))  # compiled already
    return out, [[s.spec, s.mesh] for s in shardings]


@program
def inspect_array_sharding_of_a_constrained_value():
    shardings = []

    @jax.jit
    def f(x):
        y = jax.lax.with_sharding_constraint(x + 1, NamedSharding(mesh_2x4(), P(None, "model")))
        jax.debug.inspect_array_sharding(jnp.sin(y), callback=shardings.append)
        return y

    f(put(P("data")))
    return [s.spec for s in shardings]


@program
def visualize_array_sharding_in_a_jit():
    @jax.jit
    def f(x):
        jax.debug.visualize_array_sharding(x + 1, use_color=False)
        return x

    return capture_output(lambda: f(put(P("data", "model"))))


def compiled_figures(function, *args):
    """Return the collectives, cost and memory of a compiled program."""
    compiled = jax.jit(function).lower(*args).compile()
    lines = compiled.as_text().splitlines()
    names = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    calls = [name for line in lines for name in names if f" {name}(" in line]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that these come from the compiler for CPU
        memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    sizes = {n: getattr(memory, f"{n}_size_in_bytes") for n in ("argument", "output", "temp")}
    return [lines[0], calls, cost, sizes, str(memory)]


@program
def what_the_compiler_says_of_a_jit():
    def loss(w, x):
        return jnp.mean(jnp.tanh(x @ w) ** 2)

    w, x = put(P(None, "model"), (16, 32)), put(P("data"), (8, 16))
    return compiled_figures(jax.value_and_grad(loss), w, x)


@program
def what_the_compiler_says_of_a_shard_map():
    def body(x):
        shifted = jax.lax.ppermute(x, "model", [(i, (i + 1) % 4) for i in range(4)])
        return jax.lax.psum(shifted, "data")

    f = jax.shard_map(
        body, mesh=mesh_2x4(), in_specs=P("data", "model"), out_specs=P(None, "model")
    )
    return compiled_figures(f, put(P("data", "model"), (8, 16)))
