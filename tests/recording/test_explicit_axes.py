"""Programs with Explicit mesh axes, recorded as the lab does: as text, with a mesh."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shardlab.recording.program_recording import record_source
from shardlab.sharding.mesh import parse_mesh

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


# ------------------------------------------------- programs that set no mesh, as tutorials do

TRAIN_STEP = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((4, 2), ("data", "model"))  # Explicit axes are the default

def place(array, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))

def loss_fn(params, x, y):
    h = jax.nn.relu(x @ params["w1"])
    return jnp.mean((h @ params["w2"] - y) ** 2)

@jax.jit
def train_step(params, x, y):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), loss

params = {
    "w1": place(jnp.sin(jnp.arange(128.0)).reshape(8, 16), None, "model"),
    "w2": place(jnp.cos(jnp.arange(64.0)).reshape(16, 4), W2_SPEC),
}
x, y = place(jnp.ones((16, 8)), "data"), place(jnp.zeros((16, 4)), "data")
params, loss = train_step(params, x, y)
print(f"{loss:.3f}")
print(params["w1"].sharding.spec)
"""
ACCEPTED, AMBIGUOUS_STEP = (TRAIN_STEP.replace("W2_SPEC", spec) for spec in ("None", "'model'"))
# The mesh is used only within the function that is recorded.
WITHIN = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

def f(x):
    mesh = jax.make_mesh((4, 2), ("data", "model"))
    x = jax.device_put(x, NamedSharding(mesh, P("data", "model")))
    return jnp.sin(x).sum(0)

f_args = ("f32[8,4]",)
"""
MESHES = ["data=4,model=2", "data=2,model=4"]


# Both programs in one process: starting JAX takes longer than either.
RUNNER = """
import sys, traceback
exec(compile(sys.argv[1], "program.py", "exec"), {})
try:
    exec(compile(sys.argv[2], "program.py", "exec"), {})
except Exception:
    traceback.print_exc()
"""


@pytest.fixture(scope="module")
def printed_by_devices():
    """What the accepted program prints on 8 host devices, and the traceback of the other."""
    flags = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
    process = subprocess.run(
        [sys.executable, "-c", RUNNER, ACCEPTED, AMBIGUOUS_STEP],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return process.stdout, process.stderr


@pytest.mark.parametrize("mesh", MESHES)
def test_a_train_step_on_the_default_axes_runs_as_on_devices(mesh, printed_by_devices):
    recording = record_source(ACCEPTED, mesh=mesh)
    assert recording.failure is None, recording.failure
    assert recording.output == printed_by_devices[0]
    assert dict(recording.mesh) == dict(parse_mesh(mesh).shape)
    kinds = [step.op for step in recording.steps if step.collective is not None]
    assert kinds == ["all_reduce", "all_reduce", "all_reduce", "all_gather", "all_reduce"]


@pytest.mark.parametrize("mesh", MESHES)
def test_the_error_of_jax_is_shown_with_its_line(mesh, printed_by_devices):
    failure = record_source(AMBIGUOUS_STEP, mesh=mesh).failure
    assert failure.kind == "rejected"
    error_type, message = failure.message.split(": ", 1)
    assert error_type == "ShardingTypeError"
    assert message in printed_by_devices[1]
    assert AMBIGUOUS_STEP.splitlines()[failure.line - 1].strip().startswith("return jnp.mean((h @")
    assert f", line {failure.line}, in loss_fn" in printed_by_devices[1]
    assert "jax.sharding.reshard" in failure.fix


@pytest.mark.parametrize("mesh", MESHES)
def test_a_mesh_that_only_the_function_uses_keeps_its_explicit_axes(mesh):
    recording = record_source(WITHIN, mesh=mesh)
    assert recording.failure is None, recording.failure
    assert [step.op for step in recording.steps][-3:] == ["sin", "reduce_sum", "all_reduce"]
    assert recording.values[recording.outputs[0].value].type == "f32[4@model]"


def test_collectives_are_shown_for_explicit_arguments_on_a_given_mesh():
    text = """
@jax.jit
def f(w, x):
    return jax.grad(lambda w: jnp.sum(jax.nn.relu(x @ w)))(w)

def f_args():
    place = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
    return place(jnp.ones((4, 8)), None, "model"), place(jnp.ones((8, 4)), "data")
"""
    for mesh in MESHES:
        steps = record_source(HEAD + text, mesh=mesh).steps
        calls = [step.collective.axes for step in steps if step.collective is not None]
        assert calls == [("data", "model"), ("data",)], mesh
