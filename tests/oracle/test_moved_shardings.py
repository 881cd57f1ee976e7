"""Programs whose NamedShardings contain their own mesh, on meshes of other sizes.

The lowered text must equal that of the same program written for that mesh.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import shardlab
from shardlab.errors import MeshAxesMismatch
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.observe import observe
from shardlab.tracing.stage import stage_program

sys.path.insert(0, str(Path(__file__).parent))
from sharded_programs import PROGRAMS

TARGET = "data=4,model=2"
X, W = "f32[8,16]", "f32[16,8]"


def own_mesh(sizes=(2, 4), names=("data", "model"), kind=AxisType.Auto):
    return virtual_mesh(AbstractMesh(sizes, names, axis_types=(kind,) * len(names)))


def lowered_text(f, args, mesh):
    return stage_program(f, args, mesh).lower().as_text()


# ------------------------------------------------------------------------------ every way to shard


def in_and_out(mesh):
    ins = (NamedSharding(mesh, P("data")), NamedSharding(mesh, P("model")))
    f = jax.jit(jnp.matmul, in_shardings=ins, out_shardings=NamedSharding(mesh, P(None, "model")))
    return f, (X, W)


def of_a_tree_and_donated(mesh):
    sharded = {"w": NamedSharding(mesh, P("data", "model"))}

    def step(params, x):
        return {"w": params["w"] - x.T @ jnp.tanh(x @ params["w"])}

    replicated = NamedSharding(mesh, P())
    jitted = jax.jit(
        step, in_shardings=(sharded, replicated), out_shardings=sharded, donate_argnums=(0,)
    )
    return jitted, ({"w": W}, X)


def of_a_jit_inside(mesh):
    inner = jax.jit(jnp.matmul, out_shardings=NamedSharding(mesh, P("data", "model")))
    return (lambda x, w: jnp.sin(inner(x, w))), (X, W)


def of_arguments(mesh):
    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    w = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=NamedSharding(mesh, P("model")))
    return (lambda x, w: x @ w), (x, w)


def of_arrays(mesh):
    with shardlab.simulated(mesh.size):
        w = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(mesh, P("model")))
        return jnp.matmul, (X, w)


def by_device_put(mesh):
    sharding = NamedSharding(mesh, P("data"), memory_kind="unpinned_host")
    return (lambda x: jnp.sin(jax.device_put(x, sharding)).sum()), (X,)


def by_constraints_in_loops_and_gradients(mesh):
    sharding = NamedSharding(mesh, P("data", "model"))

    @jax.custom_vjp
    def scaled(x):
        return 2 * x

    scaled.defvjp(
        lambda x: (scaled(x), None),
        lambda _, ct: (2 * lax.with_sharding_constraint(ct, sharding),),
    )

    @jax.checkpoint
    def layer(x, w):
        x = lax.with_sharding_constraint(jnp.tanh(x @ w), sharding)
        return lax.cond(x[0, 0] > 0, scaled, lambda x: x, x), None

    def loss(w, x):
        return (lax.scan(layer, x, w)[0] ** 2).mean()

    replicated = NamedSharding(mesh, P())
    f = jax.jit(jax.value_and_grad(loss), in_shardings=(replicated, NamedSharding(mesh, P("data"))))
    return f, ("f32[3,16,16]", X)


def around_a_shard_map(mesh):
    def body(x, w):
        return lax.psum(x @ w, "model")

    specs = (P("data", "model"), P("model"))
    product = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=P("data"))
    ins = (NamedSharding(mesh, P("data")), NamedSharding(mesh, P("model")))
    return jax.jit(lambda x, w: product(x, w).mean(), in_shardings=ins), (X, W)


def in_a_partly_manual_shard_map(mesh):
    def body(x):
        sharding = NamedSharding(mesh, P(None, "model"))
        return lax.psum(lax.with_sharding_constraint(jnp.sin(x), sharding), "data")

    mapped = jax.shard_map(
        body, mesh=mesh, in_specs=P("data"), out_specs=P(), axis_names={"data"}, check_vma=False
    )
    return jax.jit(mapped, in_shardings=NamedSharding(mesh, P("data"))), (X,)


WAYS = [
    in_and_out,
    of_a_tree_and_donated,
    of_a_jit_inside,
    of_arguments,
    of_arrays,
    by_device_put,
    by_constraints_in_loops_and_gradients,
    around_a_shard_map,
    in_a_partly_manual_shard_map,
]


@pytest.mark.parametrize("sizes", [(2, 4), (1, 2)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_a_sharding_of_any_kind_is_over_the_target_mesh(way, sizes):
    f, args = way(own_mesh((4, 2)))
    expected = lowered_text(f, args, None if way is not of_arrays else TARGET)
    f, args = way(own_mesh(sizes))
    assert lowered_text(f, args, TARGET) == expected


@pytest.mark.parametrize("way", [in_and_out, of_arguments, around_a_shard_map])
def test_the_target_mesh_can_list_its_axes_in_another_order(way):
    f, args = way(own_mesh((4, 2)))
    expected = lowered_text(f, args, None)
    f, args = way(own_mesh())
    assert lowered_text(f, args, "model=2,data=4") == expected


def test_a_mesh_of_real_devices_is_replaced_even_if_its_sizes_match():
    mesh = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "model"))
    f, args = around_a_shard_map(own_mesh((1, 1)))
    expected = lowered_text(f, args, None)
    f, args = around_a_shard_map(mesh)
    assert lowered_text(f, args, "data=1,model=1") == expected


ON_DEVICES = """
import jax, numpy as np, shardlab
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
x = jax.device_put(np.ones((8, 16), np.float32), NamedSharding(mesh, P("data", "model")))
w = jax.device_put(np.ones((16, 8), np.float32), NamedSharding(mesh, P("model")))
for size in (None, "data=4,model=2"):
    call, = shardlab.trace(jax.jit(lambda x, w: x @ w), x, w, mesh=size).collectives
    print(call.op, call.mesh_axes, call.shape)
"""


def test_arrays_on_real_devices_are_sharded_arguments():
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    process = subprocess.run(
        [sys.executable, "-c", ON_DEVICES], env=environment, capture_output=True, timeout=60
    )
    lines = process.stdout.decode().splitlines()
    assert lines == ["psum ('model',) (4, 8)", "psum ('model',) (2, 8)"], process.stderr.decode()


# On one device every size is divisible. The inserted collectives are derived by hand elsewhere.
@pytest.mark.parametrize("name", PROGRAMS)
def test_models_equal_those_written_for_the_target_mesh(name):
    program = PROGRAMS[name]
    mesh = virtual_mesh(program.mesh)
    expected = lowered_text(*program.make(mesh), None)
    moved = program.make(virtual_mesh(dict.fromkeys(mesh.axis_names, 1)))
    assert lowered_text(*moved, program.mesh) == expected


@pytest.mark.parametrize("way", [in_and_out, of_arguments])
def test_explicit_axes_are_retargeted(way):
    f, args = way(own_mesh((4, 2), kind=AxisType.Explicit))
    expected = lowered_text(f, args, None)
    f, args = way(own_mesh(kind=AxisType.Explicit))
    assert lowered_text(f, args, TARGET) == expected


def test_explicit_axes_in_context_determine_the_target_axis_types():
    def f(x, w):
        return jnp.einsum("ij,jk->ik", x, w, out_sharding=P("data"))

    with shardlab.simulated(8), jax.set_mesh(own_mesh(kind=AxisType.Explicit)):
        (out,) = stage_program(f, (X, W), TARGET).jaxpr.out_avals
    assert (out.sharding.spec, dict(out.sharding.mesh.shape)) == (
        P("data", None),
        {"data": 4, "model": 2},
    )


def test_a_function_with_an_explicit_mesh_is_traced_on_the_target_mesh():
    # More lenient than JAX, which also needs jax.set_mesh here: the mesh given counts as set.
    sharding = NamedSharding(own_mesh(kind=AxisType.Explicit), P("data"))
    staged = stage_program(lambda x: jnp.sin(jax.sharding.reshard(x, sharding)), (X,), TARGET)
    assert staged.sizes == (("data", 4), ("model", 2))
    assert set(staged.mesh.axis_types) == {AxisType.Explicit}


@pytest.mark.parametrize("way", [in_and_out, of_arguments, by_device_put])
def test_other_axis_names_are_rejected(way):
    f, args = way(own_mesh())
    with pytest.raises(MeshAxesMismatch, match="'data', 'model'; the mesh given has 'batch'"):
        stage_program(f, args, "batch=8")


# ------------------------------------------------------------------------------ observation


def test_a_program_is_observed_on_the_target_mesh_with_source_and_origin():
    f, args = around_a_shard_map(own_mesh())
    observation = observe(f, args, TARGET)
    assert observation.mesh == (("data", 4), ("model", 2))
    assert [
        (c.op, c.mesh_axes, c.shape, c.origin, c.source.function) for c in observation.calls
    ] == [
        ("psum", ("model",), (2, 8), "program", "body"),
        ("psum", ("data",), (), "compiler", "<lambda>"),
    ]


def test_the_shardings_of_a_jit_are_its_mesh():
    mesh = own_mesh()
    with_in_shardings = jax.jit(jnp.sin, in_shardings=NamedSharding(mesh, P("data")))
    with_out_shardings = jax.jit(jnp.sin, out_shardings=NamedSharding(mesh, P("data")))
    for f in (with_in_shardings, with_out_shardings):
        observation = observe(f, (X,), None, compiler_use="never")
        assert observation.mesh == (("data", 2), ("model", 4))
        assert not shardlab.check(f, X).findings
    assert [f.code for f in shardlab.check(jnp.sin, X).findings] == ["program.no_communication"]


def test_an_indivisible_argument_of_a_jit_is_reported_by_name():
    def step(params, x):
        return x @ params["w"]

    mesh = own_mesh()
    ins = ({"w": NamedSharding(mesh, P("model"))}, NamedSharding(mesh, P("data")))
    (finding,) = shardlab.check(
        jax.jit(step, in_shardings=ins), {"w": W}, X, mesh="data=2,model=5"
    ).findings
    assert finding.code == "spec.indivisible"
    assert (
        "Dimension 0 of argument 'params['w']' has size 16, which is not divisible by 5"
        in finding.what
    )


def test_a_rejection_prints_nothing(capsys):
    f, args = in_and_out(own_mesh())
    observe(f, args, "data=3,model=2")
    assert capsys.readouterr().out == ""


def test_a_program_that_jax_rejects_in_lowering_is_recorded():
    sharding = NamedSharding(own_mesh(kind=AxisType.Explicit), P("data"))
    f = jax.jit(lambda x: jnp.sin(jax.sharding.reshard(x, sharding)).sum())
    (pattern,) = observe(f, (X,), None).patterns
    assert pattern.kind == "rejected"
    assert "jax.set_mesh" in pattern.facts["message"]
    assert pattern.source.function == "<lambda>"
