"""`shardlab record` and `shardlab run --record`: files in the format that their name says."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardlab.cli import main
from shardlab.recording.recording import load_recording

PROGRAM = """import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P

mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def body(x):
    return jax.lax.psum(x.sum(), "data")


def total(x):
    return jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=P())(x)


total_args = ("f32[8]",)

if __name__ == "__main__":
    print(jax.jit(total)(jnp.arange(8.0)))
"""


@pytest.fixture
def program(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return file


def run(*arguments):
    return CliRunner().invoke(main, [str(item) for item in arguments])


def test_record_a_function_as_a_page(program, tmp_path):
    page = tmp_path / "step.html"
    done = run("record", f"{program}:total", "--mesh", "data=2", "--quiet", "-o", page)
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("total on data=2: ")
    assert 'id="recording"' in page.read_text()


def test_record_a_script_through_its_own_call(program, tmp_path):
    file = tmp_path / "step.json.gz"
    done = run("record", program, "--quiet", "-o", file)
    assert done.exit_code == 0, done.stderr
    recording = load_recording(file)
    assert recording.mesh == (("data", 4),)
    assert recording.values[recording.outputs[0].value].groups[0].mean == 28.0


@pytest.mark.parametrize("command", ["record", "run"])
def test_a_file_name_without_a_format_is_rejected_before_the_program_runs(program, command):
    option = "-o" if command == "record" else "--record"
    done = run(command, option, "step.txt", program)
    assert done.exit_code == 2
    assert ".html, .json, .json.gz" in done.stderr
    assert not Path("step.txt").exists()
