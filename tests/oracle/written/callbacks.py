"""Host callbacks: how often they run, for which devices, with which arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as P
from program import ProgramTable, f32

program = ProgramTable()

BOTH = P("data", "model")


def append_to(log, label):
    """Return a host function that appends its arguments to the log."""

    def append(*args):
        log.append(f"{label} {[f'{np.asarray(arg).item():.3f}' for arg in args]}")

    return append


@program("data=2,model=4", f32(6, 12), grad=False)
def debug_callback_is_called_on_each_device(w):
    def body(x):
        jax.debug.callback(append_to(w.log, "x"), x.sum(), lax.axis_index("model"))
        return x

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12), grad=False)
def debug_callback_with_equal_arguments_is_called_on_each_device(w):
    def body(x):
        jax.debug.callback(append_to(w.log, "total"), lax.psum(x.sum(), ("data", "model")) > 0)
        return x

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12), grad=False)
def debug_callback_in_a_branch_is_called_on_devices_that_take_it(w):
    def body(x):
        def yes(x):
            jax.debug.callback(append_to(w.log, "yes"), x.sum())
            return x

        def no(x):
            jax.debug.callback(append_to(w.log, "no"), lax.axis_index("data"))
            return -x

        return lax.cond(x.sum() > 0, yes, no, x)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH)


@program("data=2,model=4", f32(6, 12), grad=False)
def debug_callback_in_a_loop_is_called_on_devices_still_in_it(w):
    def body(x):
        def step(state):
            n, x = state
            jax.debug.callback(append_to(w.log, "step"), n, x.sum())
            return n + 1, x * 0.5

        return lax.while_loop(lambda s: s[0] < lax.axis_index("model"), step, (0, x))[1]

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH, check_vma=False)


@program("data=2,model=4", f32(6, 12), grad=False)
def pure_callback_computes_on_the_host(w):
    def body(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda a: np.cumsum(a, 1), shape, x)

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH, check_vma=False)


@program("data=2,model=4", f32(6, 12), grad=False)
def io_callback_is_called_on_each_device(w):
    def body(x):
        def host(a, index):
            w.log.append(f"{int(index)} {float(a.sum()):.3f}")
            return np.asarray(a * index, np.float32)

        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return io_callback(host, shape, x, lax.axis_index(("data", "model")))

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH, check_vma=False)


@program("x=8", f32(8), grad=False)
def io_callback_with_equal_arguments_is_called_on_each_device(w):
    def body(x):
        io_callback(append_to(w.log, "here"), None, jnp.float32(1.5))
        return x

    return w.shard_map(body, in_specs=P("x"), out_specs=P("x"), check_vma=False)


@program("data=2,model=4", f32(6, 12), grad=False)
def io_callback_in_a_scan(w):
    def body(x):
        def step(carry, i):
            io_callback(append_to(w.log, "i"), None, i, carry.sum())
            return carry * 0.5, None

        return lax.scan(step, x, jnp.arange(2))[0]

    return w.shard_map(body, in_specs=BOTH, out_specs=BOTH, check_vma=False)
