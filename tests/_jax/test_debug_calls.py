"""A program without its debug calls, and without what is computed for them alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from shardlab._jax.debug_calls import has_debug_calls, without_debug_calls

MESH = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))
X = jax.ShapeDtypeStruct((4,), np.float32)


def count_equations(jaxpr, name):
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    bodies = [
        value
        for eqn in inner.eqns
        for item in eqn.params.values()
        for value in (item if isinstance(item, tuple) else (item,))
        if hasattr(getattr(value, "jaxpr", value), "eqns")
    ]
    own = sum(name in eqn.primitive.name for eqn in inner.eqns)
    return own + sum(count_equations(body, name) for body in bodies)


def trace(body):
    mapped = jax.shard_map(body, mesh=MESH, in_specs=P("data"), out_specs=P())
    return jax.jit(mapped).trace(X)


def total(y):
    return lax.psum(jnp.sum(y), "data")


def print_in_scan(y):
    def step(carry, value):
        jax.debug.print("{}", lax.psum(value, "data"), ordered=True)
        return carry + value, None

    carry, _ = lax.scan(step, lax.pcast(jnp.float32(0), "data", to="varying"), y)
    return lax.psum(carry, "data")


PRINTING = {
    "a print": lambda y: (jax.debug.print("{}", total(y)), total(y))[1],
    "a callback": lambda y: (jax.debug.callback(print, total(y)), total(y))[1],
    "in a scan": print_in_scan,
    "in a branch": lambda y: (
        lax.cond(True, lambda: jax.debug.print("{}", total(y)), lambda: None),
        total(y),
    )[1],
    "in a jit": lambda y: (jax.jit(lambda z: jax.debug.print("{}", z))(total(y)), total(y))[1],
    "through another operation": lambda y: (jax.debug.print("{}", 2 * total(y)), total(y))[1],
}


@pytest.mark.parametrize("name", PRINTING)
def test_what_is_computed_for_a_call_is_removed_with_it(name):
    traced = trace(PRINTING[name])
    assert has_debug_calls(traced.jaxpr)
    assert count_equations(traced.jaxpr, "psum") == 2
    silent = without_debug_calls(traced).trace(X)
    assert not has_debug_calls(silent.jaxpr)
    assert count_equations(silent.jaxpr, "psum") == 1


KEPT = {
    "used by the result, too": lambda y: (lambda t: (jax.debug.print("{}", t), t * total(y))[1])(
        total(y)
    ),
    "used by nothing": lambda y: (total(y), jax.debug.print("here"), total(y))[2],
}


@pytest.mark.parametrize("name", KEPT)
def test_everything_else_stays(name):
    silent = without_debug_calls(trace(KEPT[name])).trace(X)
    assert count_equations(silent.jaxpr, "psum") == 2
