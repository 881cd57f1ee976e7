"""`shardlab trace`: calls, bytes and time of functions and of whole scripts."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import programs
import pytest
from click.testing import CliRunner

from shardlab.cli import main
from shardlab.tracing.trace import Trace


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with the programs."""
    (tmp_path / "right.py").write_text(programs.RIGHT.lstrip("\n"), "utf-8")
    (tmp_path / "empty.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def trace(*args):
    return CliRunner().invoke(main, ["trace", *args], prog_name="shardlab")


def test_a_function_is_traced_for_a_virtual_mesh(folder):
    done = trace(
        *("right.py:loss", "--args", "weights", "--mesh", "data=6"),
        *("--hardware", "tpu-v5p", "--json", "a.json", "--html", "a.html", "--svg", "a.svg"),
        *("--picture", "1"),
    )
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("tracing\n")
    assert "right.py:18" in done.stdout
    assert "On tpu-v5p" in done.stdout
    assert "What each device receives, and from which" in done.stdout
    data = json.loads((folder / "a.json").read_text())
    (call,) = data["collectives"]
    # 2 (g-1)/g of 4 bytes, g = 6
    assert (call["op"], call["mesh_axes"], call["wire_bytes"]) == ("psum", ["data"], 7)
    assert call["source"] == {"file": "right.py", "line": 18, "function": "body"}
    assert data["estimate"]["hardware"] == "tpu-v5p"
    assert Trace.from_json(data).wire_bytes == 7
    assert "psum" in (folder / "a.html").read_text()
    assert ET.fromstring((folder / "a.svg").read_text()).tag.endswith("svg")


def test_each_program_of_a_script_is_traced_once_the_compilers_calls_too():
    done = trace("right.py", "--json", "-", "--", "--jit")
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("hello ['--jit']\n15.5\n")
    data = json.loads(done.stdout)
    assert data["program"] == "right.py"
    sums, mean = data["traces"]  # the one that sends most comes first
    assert [(call["op"], call["shape"]) for call in sums["collectives"]] == [("psum", [2, 4])]
    (call,) = mean["collectives"]
    assert (mean["program"], call["op"], call["origin"]) == ("mean", "psum", "compiler")
    assert mean["memory"]["argument_bytes"] == 32


def test_a_jit_that_is_traced_twice_is_shown_once_also_when_the_script_then_raises(folder):
    with (folder / "right.py").open("a") as file:
        file.write("    jax.jit(lambda x, y: sums(x) * y)(x, 2.0)\n" * 2)
        file.write("    scaled = jax.jit(lambda x, y: sums(x) * y)\n")
        file.write("    scaled(x, 2.0), scaled(x, jnp.float32(2))\n")
        file.write("    raise KeyError('lr')\n")
    done = trace("right.py", "--all")
    assert done.exit_code == 2, done.output
    assert done.stdout.count("<lambda> on mesh data=4") == 2  # sums alone, and scaled
    assert "[program.raised] The program raised KeyError: 'lr'" in done.stderr


STEP_AFTER_INIT = """
import jax, jax.numpy as jnp

auto = (jax.sharding.AxisType.Auto,) * 3
mesh = jax.make_mesh((1, 4, 1), ("stage", "data", "model"), axis_types=auto)
sharded = jax.NamedSharding(mesh, jax.P("data"))
counter = jax.new_ref(jax.device_put(jnp.zeros(()), jax.NamedSharding(mesh, jax.P())))

def _init_fn():
    return jnp.ones((8, 16))

def step(x):
    counter[...] += 1
    return jnp.mean(x @ x.T)

x = jax.jit(_init_fn, out_shardings=sharded)()
jax.jit(step)(x)
"""


def test_a_script_leads_with_the_program_that_communicates_and_lists_the_others(folder):
    (folder / "steps.py").write_text(STEP_AFTER_INIT)
    done = trace("steps.py")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "step on mesh data=4 (and 2 axes of size 1), 4 devices"
    assert lines[-1].startswith("  _init_fn on data=4: sends nothing")
    assert sum("_init_fn" in line for line in lines) == 1


def test_a_program_that_jax_rejects_has_no_totals():
    done = trace("right.py:loss", "--args", "weights", "--mesh", "data=7")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "[trace.rejected] JAX rejects 'loss'. Dimension 0 of 'x' has size 24" in done.stderr
    assert "right.py:20" in done.stderr


def test_a_picture_of_an_unknown_call_is_rejected_before_the_trace_is_shown():
    done = trace("right.py:loss", "--args", "weights", "--mesh", "data=6", "--picture", "9")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--picture 9: loss has one call, number 1." in done.stderr


def test_an_imported_module_is_not_suggested_as_arguments(folder):
    with (folder / "right.py").open("a") as file:
        file.write("import numpy as np\n")
    done = trace("right.py:loss", "--args", "nope")
    assert "try:   add a function nope() that returns a tuple" in done.stderr


def test_a_script_with_nothing_to_trace_is_reported():
    done = trace("empty.py")
    assert (done.exit_code, done.stdout) == (0, "")
    message = "empty.py ran no shard_map and no jit with shardings: nothing to trace"
    assert done.stderr == f"hello\n{message}\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--hardware", "tpu-v5q"], "[hardware.unknown] Unknown hardware 'tpu-v5q'"),
        (["--dcn", "data"], "--dcn changes the estimated time: it needs --hardware."),
        (
            ["--picture", "circle"],
            "--picture circle: expected timeline, traffic,",
        ),
        (["--efficiency", "2"], "Invalid value for '--efficiency'"),
        (["--mesh", "data"], "[layout.invalid_syntax]"),
    ],
)
def test_invalid_options_are_rejected_before_the_work(args, message):
    done = trace("right.py:loss", *args)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
