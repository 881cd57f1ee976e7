"""What the compiler inserts equals lists made by hand; memory equals plain JAX's, to the byte."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab._jax.lowered import compiler_input
from shardlab.collectives.wire import wire_bytes
from shardlab.errors import CompileFailed, CompileTimeout, InvalidTopology, TpuCompilerMissing
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.compiler import xla_process
from shardlab.tracing.compiler.inserted_collectives import observe_compiled
from shardlab.tracing.compiler.tpu_topology import observe_on_topology
from shardlab.tracing.compiler.xla_process import compile_for_devices
from shardlab.tracing.hlo.hlo_module import parse_module
from shardlab.tracing.stage import stage_program

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from sharded_programs import PROGRAMS, array, mlp, tally  # noqa: E402  needs the path above

HAS_TPU_COMPILER = importlib.util.find_spec("libtpu") is not None


@pytest.fixture(scope="module")
def on_real_devices():
    """Ask plain JAX in a process of its own, which works while the first tests run."""
    hidden = ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "sharded_on_devices.py")],
        env={**kept, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
    )
    answers = []

    def ask(name):
        if not answers:
            out, _ = process.communicate(timeout=120)
            answers.append(json.loads(out))
        return answers[0][name]

    yield ask
    process.kill()
    process.communicate()


def staged(program):
    mesh = virtual_mesh(program.mesh)
    f, args = program.make(mesh)
    return stage_program(f, args, mesh)


def counted(calls):
    return tally(*((c.op, ",".join(c.mesh_axes), c.payload_bytes, c.phase, c.count) for c in calls))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_inserted_calls_are_those_worked_out_by_hand(name, on_real_devices):
    program = PROGRAMS[name]
    calls, memory, *_ = observe_compiled(staged(program))
    assert counted(calls) == program.calls
    sizes = dict(virtual_mesh(program.mesh).shape)
    for call in calls:
        (axis,) = call.mesh_axes
        assert call.group_size == sizes[axis]
        assert call.wire_bytes == wire_bytes(call.op, call.payload_bytes, sizes[axis])
        assert call.origin == "compiler"
        assert call.source.file == str(HERE / "sharded_programs.py")
    assert [memory.argument_bytes, memory.output_bytes] == on_real_devices(name)["memory"]


@pytest.mark.parametrize("name", ["FSDP and tensor parallel", "scanned layers in bf16"])
def test_the_text_is_the_one_that_real_devices_get(name, on_real_devices):
    """All partitions are assigned to one device, and no other is made: XLA does not mind."""
    program = compiler_input(staged(PROGRAMS[name]).lower())
    ours = compile_for_devices(program, name).module
    real = parse_module(on_real_devices(name)["text"])
    assert ours.n_partitions == real.n_partitions == 8
    assert [_bare(one) for one in ours] == [_bare(one) for one in real]


def _bare(computation):
    """Return the lines without where they come from: our own frames stand around the program's."""
    return [re.sub(r", metadata=\{.*\}", "", line) for line in computation.lines]


def test_a_call_names_shape_dtype_line_and_loop():
    (call,) = [
        call
        for call in observe_compiled(staged(PROGRAMS["scanned layers in bf16"]))[0]
        if (call.op, call.phase) == ("psum", "forward") and call.mesh_axes == ("model",)
    ]
    assert (call.shape, call.out_shape, call.dtype) == ((8, 32), (8, 32), "bfloat16")
    assert call.source.function == "layer"
    line = Path(call.source.file).read_text().splitlines()[call.source.line - 1]
    assert "h @ w[1]" in line
    assert [(scope.kind, scope.length) for scope in call.within] == [("scan", 6)]


@pytest.mark.parametrize("mesh", ["data=16,model=32", "data=128,model=32"])
def test_hundreds_and_thousands_of_devices(mesh):
    """4,096 are more than XLA for CPU has room for; none of them is made."""
    n_data, n_model = virtual_mesh(mesh).shape.values()
    width, hidden, batch = 256, 2048, 512
    given = virtual_mesh(mesh)
    shapes = {"up": (width, hidden), "down": (hidden, width), "x": (batch, width)}
    specs = {"up": P("data", "model"), "down": P("model", "data"), "x": P("data")}

    def loss(params, x):
        h = jax.nn.relu(x @ params["up"])
        h = jax.lax.with_sharding_constraint(h, NamedSharding(given, P("data", "model")))
        y = jax.lax.with_sharding_constraint(h @ params["down"], NamedSharding(given, P("data")))
        return jnp.mean(y**2)

    args = {name: array(given, shapes[name], specs[name]) for name in shapes}
    x = args.pop("x")
    outs = NamedSharding(given, P()), {name: args[name].sharding for name in args}
    f = jax.jit(jax.value_and_grad(loss), out_shardings=outs)
    calls, memory, *_ = observe_compiled(stage_program(f, (args, x), given))
    weight = width * hidden * 4
    assert counted(calls) == tally(
        ("all_gather", "data", weight // n_data // n_model, "forward", 2),
        ("psum", "model", batch // n_data * width * 4, "forward", 1),
        ("psum", "data", 4, "forward", 1),
        ("psum_scatter", "data", weight // n_model, "backward", 2),
    )
    assert memory.argument_bytes == 2 * weight // (n_data * n_model) + batch // n_data * width * 4


def test_a_shard_map_inside_is_not_counted_twice():
    mesh = virtual_mesh("data=2,model=4")

    def body(x):
        total = jax.lax.psum(x, "data")
        return total + jax.lax.ppermute(total, "model", [(0, 1), (1, 2), (2, 3), (3, 0)])

    inner = jax.shard_map(body, mesh=mesh, in_specs=P("data", "model"), out_specs=P(None, "model"))

    def f(x):
        y = jax.lax.with_sharding_constraint(inner(x), NamedSharding(mesh, P()))
        return jnp.sum(x, 0) + jnp.sum(y, 0)

    calls, *_ = observe_compiled(stage_program(f, [array(mesh, (8, 12), P("data", "model"))], mesh))
    # Inserted are the gather that the constraint asks for, and the sum of x over its rows.
    assert {(c.op, c.mesh_axes) for c in calls} >= {("all_gather", ("model",)), ("psum", ("data",))}
    assert all("total" not in _line(call.source) for call in calls)


def _line(source):
    return Path(source.file).read_text().splitlines()[source.line - 1] if source.line else ""


def test_recomputed_calls_and_branches_are_separate():
    mesh = virtual_mesh("data=2,model=4")

    def loss(w, x):
        @jax.checkpoint
        def layer(x):
            h = jax.lax.with_sharding_constraint(
                jnp.sin(x @ w[0]), NamedSharding(mesh, P("data", "model"))
            )
            y = jnp.sin(h @ w[1])
            return jax.lax.with_sharding_constraint(y, NamedSharding(mesh, P("data")))

        x = layer(x)
        return jax.lax.cond(w[2] > 0, lambda: jnp.sum(x), lambda: jnp.max(x))

    w = [
        array(mesh, (32, 96), P(None, "model")),
        array(mesh, (96, 32), P("model")),
        array(mesh, (), P()),
    ]
    f = jax.value_and_grad(loss, allow_int=True)
    calls, *_ = observe_compiled(stage_program(f, [w, array(mesh, (16, 32), P("data"))], mesh))
    phases = [c.phase for c in calls if c.mesh_axes == ("model",)]
    assert phases.count("forward") == phases.count("recompute") == 1
    branches = {
        (call.op, scope.branch, scope.n_branches)
        for call in calls
        for scope in call.within
        if call.phase == "forward"
    }
    assert branches >= {("psum", 1, 2), ("pmax", 0, 2)}


def test_a_while_loop_of_unknown_length_counts_per_turn():
    mesh = virtual_mesh("data=8")

    def f(x):
        return jax.lax.while_loop(lambda x: jnp.sum(x) < 1e6, lambda x: x * 2, x)

    calls, *_ = observe_compiled(stage_program(f, [array(mesh, (16, 3), P("data"))], mesh))
    (call,) = calls
    assert (call.op, call.payload_bytes, call.count) == ("psum", 4, None)
    assert [scope.kind for scope in call.within] == ["while"]


def test_devices_in_another_order_are_still_on_their_mesh_axes():
    straight = virtual_mesh("data=2,model=4")
    mesh = jax.sharding.Mesh(straight.devices[::-1, [2, 0, 3, 1]], ("data", "model"))
    f, args = mlp(P(None, "model"), P("model"), P("data"))(mesh)
    calls, *_ = observe_compiled(stage_program(f, args, None))
    assert counted(calls) == PROGRAMS["data and tensor parallel"].calls


def test_groups_within_a_mesh_axis_are_noted():
    mesh = virtual_mesh("model=8")
    f = jax.jit(lambda x: x.reshape(2, 4, 6).sum(1))
    calls, _, notes, _ = observe_compiled(stage_program(f, [array(mesh, (8, 6), P("model"))], mesh))
    call = calls[0]
    assert (call.op, call.mesh_axes, call.group_size) == ("psum", ("model",), 4)
    assert call.details["partly"] == "4 of the 8 devices along 'model'"
    assert any("do not span full mesh axes" in note for note in notes)


def test_one_device_sends_nothing_and_still_has_memory():
    mesh = virtual_mesh("data=1")
    calls, memory, *_ = observe_compiled(
        stage_program(jnp.sum, [array(mesh, (8, 6), P("data"))], mesh)
    )
    assert (calls, memory.argument_bytes) == ((), 8 * 6 * 4)


def test_lapack_and_callbacks_compile():
    mesh = virtual_mesh("data=2")

    def f(x):
        jax.debug.print("{}", x.sum())
        return jnp.linalg.cholesky(x @ x.T + jnp.eye(6))

    calls, *_ = observe_compiled(stage_program(f, [array(mesh, (6, 6), P("data"))], mesh))
    assert ("psum", ("data",)) in {(call.op, call.mesh_axes) for call in calls}


# ---------------------------------------------------------------------------- the process


def test_a_compile_over_its_limit_is_ended_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(xla_process.tempfile, "tempdir", str(tmp_path))
    hanging = tmp_path / "hanging.py"
    marker = tmp_path / "child"
    hanging.write_text(
        "import pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(marker)!r}).write_text(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(xla_process, "_WORKER", hanging)
    program = compiler_input(staged(PROGRAMS["data parallel"]).lower())
    start = time.monotonic()
    with pytest.raises(CompileTimeout, match=r"'step' in 6 s and was killed"):
        compile_for_devices(program, "step", limit_s=6)
    assert time.monotonic() - start < 300  # the worker would sleep for 600 s
    assert not list(tmp_path.glob("shardlab-*"))
    child = int(marker.read_text())
    for _ in range(50):
        if not _is_running(child):
            break
        time.sleep(0.1)
    assert not _is_running(child)


def _is_running(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        status = Path(f"/proc/{pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_worker_ends_with_its_parent_and_tidies_up(tmp_path):
    folder = tmp_path / "shardlab-any"
    folder.mkdir()
    os.mkfifo(folder / "module")  # nobody writes: the worker waits, as in a long compile
    command = [sys.executable, "-P", str(xla_process._WORKER), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as worker:
        worker.stdin.close()  # as when the parent dies
        assert worker.wait(20) == 1
    assert not folder.exists()


def test_a_program_that_xla_rejects_raises_with_its_message():
    mesh = virtual_mesh("data=2")

    def f(x):
        kernel = jax.ffi.ffi_call("no_such_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))
        return kernel(x)

    with pytest.raises(CompileFailed, match="No FFI handler registered for no_such_kernel"):
        observe_compiled(stage_program(f, [array(mesh, (6, 6), P("data"))], mesh))


def test_a_worker_that_crashes_gives_its_last_line(monkeypatch, tmp_path):
    dying = tmp_path / "dying.py"
    dying.write_text("raise MemoryError('no room for 7 devices')\n")
    monkeypatch.setattr(xla_process, "_WORKER", dying)
    program = compiler_input(staged(PROGRAMS["data parallel"]).lower())
    with pytest.raises(CompileFailed, match="MemoryError: no room for 7 devices"):
        compile_for_devices(program, "step")


# ---------------------------------------------------------------------------- the TPU compiler


@pytest.mark.skipif(HAS_TPU_COMPILER, reason="libtpu is installed")
def test_without_libtpu_a_topology_says_what_to_install():
    with pytest.raises(TpuCompilerMissing, match=re.escape("needs the TPU compiler")) as raised:
        observe_on_topology(staged(PROGRAMS["data parallel"]), "v5e:2x4")
    assert 'pip install "shardlab[tpu]"' in raised.value.fix


def test_an_invalid_topology_name_is_rejected():
    with pytest.raises(InvalidTopology, match="'sixteen' is not the name of a TPU topology"):
        observe_on_topology(staged(PROGRAMS["data parallel"]), "sixteen")


@pytest.mark.skipif(not HAS_TPU_COMPILER, reason="libtpu (shardlab[tpu]) is not installed")
@pytest.mark.parametrize(
    "name",
    ["data and tensor parallel", "Llama, data and tensor parallel", "scanned layers in bf16"],
)
def test_the_tpu_compiler_sums_and_gathers_the_same(name):
    program = PROGRAMS[name]
    calls, memory, _ = observe_on_topology(staged(program), "v5e:2x4")
    # It combines gradients, of which each keeps its bytes, but only the first its phase.
    assert _without_phase(counted(calls)) == _without_phase(program.calls)
    assert memory.compiler.startswith("TPU v5e:2x4")


def _without_phase(calls):
    counts = {}
    for (op, axes, payload, _), count in calls.items():
        counts[op, axes, payload] = counts.get((op, axes, payload), 0) + count
    return counts


@pytest.mark.skipif(not HAS_TPU_COMPILER, reason="libtpu (shardlab[tpu]) is not installed")
def test_a_topology_of_another_size_is_rejected():
    with pytest.raises(InvalidTopology, match="has 16 devices, and the mesh data=2,model=4 has 8"):
        observe_on_topology(staged(PROGRAMS["data and tensor parallel"]), "v5e:4x4")
