"""Programs with Explicit mesh axes, recorded as the lab does: as text, with a mesh."""

from __future__ import annotations

import pytest

from shardlab.recording.program_recording import record_source

HEAD = """
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
"""
ARGUMENTS = """
def f_args():
    x = jnp.arange(32.0).reshape(8, 4)
    return jax.device_put(x, P("data", "model")), jax.device_put(x.T, P("model", None))
"""
PRODUCT = """
jax.set_mesh(mesh)
@jax.jit
def f(x, w):
    return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("data", None))
"""
AMBIGUOUS = """
jax.set_mesh(mesh)
@jax.jit
def f(x, w):
    return x @ w
"""
RESHARD = """
jax.set_mesh(mesh)
@jax.jit
def f(x, w):
    return jax.sharding.reshard(jnp.sin(x), P("data", None)) + w.T.sum()
"""
SHARD_MAP = """
jax.set_mesh(mesh)
@jax.shard_map(in_specs=(P("data", "model"), P("model", None)), out_specs=P("data", None))
def f(x, w):
    return jax.lax.psum(x @ w, "model")
"""
SCRIPT = """
with jax.set_mesh(mesh):
    x = jax.device_put(jnp.arange(32.0).reshape(8, 4), P("data", "model"))
    @jax.jit
    def g(x):
        return jax.sharding.reshard(jnp.sin(x), P("data", None)).sum()
    g(x)
"""
NAMED = """
@jax.jit
def f(x):
    return x + jnp.arange(4.0)

def f_args():
    return (jax.device_put(jnp.ones((8, 4)), NamedSharding(mesh, P("data", "model"))),)
"""
PROGRAMS = {
    "out_sharding": (PRODUCT + ARGUMENTS, ["dot_general", "all_reduce"]),
    "reshard": (RESHARD + ARGUMENTS, ["sin", "all_gather"]),
    "shard_map": (SHARD_MAP + ARGUMENTS, ["dot_general", "psum_invariant"]),
    "script": (SCRIPT, ["sin", "all_gather", "reduce_sum", "all_reduce"]),
    "NamedSharding": (NAMED, ["iota", "add"]),
}


@pytest.mark.parametrize("mesh", [None, "data=2,model=4", "data=4,model=2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_explicit_axes_is_recorded(name, mesh):
    text, operations = PROGRAMS[name]
    recording = record_source(HEAD + text, mesh=mesh)
    assert recording.failure is None, recording.failure
    recorded = [step.op for step in recording.steps]
    assert [op for op in recorded if op in operations] == operations
    if mesh and name != "script":
        assert ",".join(f"{axis}={size}" for axis, size in recording.mesh) == mesh


def test_the_message_of_jax_about_an_ambiguous_sharding_is_complete():
    recording = record_source(HEAD + AMBIGUOUS + ARGUMENTS, mesh="data=2,model=4")
    assert recording.failure.kind == "rejected"
    assert "ambiguous how the output should be sharded" in recording.failure.message
    assert recording.failure.message.endswith("rhs_contracting_spec=('model',)")
    assert "jax.sharding.reshard" in recording.failure.fix
