"""`shardlab launch` on real processes of this machine: reports, hangs by name, nothing left."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import pytest

from cluster import launched_programs as programs
from cluster.launch_command import Launch, launch, marked_processes, read_report, wait_until_gone

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")

HANG = ("--stall-limit", "4", "train.py")


def test_a_script_on_two_processes_agrees_with_its_simulation(tmp_path):
    arguments = ("--verify", "--hardware", "tpu-v5e", "--calibration", "point.json")
    done = launch(
        tmp_path, "--on", "local:2", *arguments, "--json", "report.json", "train.py",
        program=programs.TRAINS,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    report = read_report(tmp_path)
    assert [process.devices for process in report.processes] == [(0,), (1,)]
    assert all(process.peak_memory_bytes for process in report.processes)
    (step,) = report.programs
    assert (step.key, step.mesh, step.n_calls) == ("step", (("data", 2),), 3)
    assert [call.op for call in step.collectives] == ["psum", "psum"]
    # The value and the gradient, of the first and of the last call, on both devices.
    assert [(output.call, len(output.shards)) for output in step.outputs] == [
        (0, 2), (0, 2), (2, 2), (2, 2),
    ]  # fmt: skip
    verification = report.verification
    assert (verification.n_outputs, verification.n_shards, verification.differences) == (4, 8, ())
    assert verification.n_collectives == 2
    point = json.loads((tmp_path / "point.json").read_text())
    assert (
        point["measured_seconds"]
        == sorted(step.call_seconds[1:])[0] / 2 + max(step.call_seconds[1:]) / 2
    )
    assert 0 < point["efficiency"] <= 1
    assert "[0] loss" in done.stderr
    assert "[1] loss" in done.stderr
    assert done.left_running() == []


def test_a_program_that_drops_its_sharded_argument_is_on_one_device_on_both_sides(tmp_path):
    done = launch(
        tmp_path, "--on", "local:2", "--devices-per-process", "2", "--verify",
        "--json", "report.json", "train.py", program=programs.DROPS_AN_ARGUMENT,
    )  # fmt: skip
    assert done.code == 0, done.stdout + done.stderr
    report = read_report(tmp_path)
    assert [(program.key, program.n_calls) for program in report.programs] == [("scale", 1)]
    assert report.verification.n_outputs == 1


def test_a_process_that_never_calls_a_program_is_named(tmp_path):
    done = launch(
        tmp_path, "--on", "local:2", "--verify", "train.py",
        program=programs.SKIPS_A_PROGRAM_WITHOUT_COLLECTIVES,
    )  # fmt: skip
    sentence = "square: process 1 never called it (calls: 2 on process 0, 0 on process 1)"
    assert done.code == 1
    assert f"  program      {sentence}\n" in done.stdout
    assert f"warning: {sentence}" in done.stdout
    assert "differ in 1 place" in done.stdout


@pytest.mark.long
def test_a_process_that_waits_in_device_put_is_named_with_the_line_of_the_call(tmp_path):
    done = launch(tmp_path, "--on", "local:2", *HANG, program=programs.PUTS_ON_ONE_PROCESS)
    assert "Process 0 waits in 'jax.device_put', called at train.py:18 (<module>)" in done.error


def test_a_skipped_collective_is_named_with_process_and_line(tmp_path):
    done = launch(tmp_path, "--on", "local:2", *HANG, program=programs.SKIPS_A_CALL)
    assert done.code == 1
    assert done.error.startswith("[launch.collective_not_reached] Process 0 waits in 'total'")
    assert "called at train.py:18 (<module>)" in done.error
    assert (
        "psum over 'data' at train.py:10 (<lambda>), which process 1 does not reach" in done.error
    )
    assert "process 1 runs the program's own lines, at train.py:20 (<module>)" in done.error
    assert done.left_running() == []


def test_a_killed_process_is_named_and_not_the_peer_that_lost_it(tmp_path):
    done = launch(tmp_path, "--on", "local:2", *HANG, program=programs.KILLED)
    assert done.code == 1
    assert done.error.startswith("[launch.process_died] Process 1 (pid ")
    assert "ended by signal SIGKILL" in done.error
    assert "Gloo" not in done.stderr
    assert done.left_running() == []


def test_nothing_is_left_when_the_launcher_is_killed(tmp_path):
    started = Launch(tmp_path, "--on", "local:2", "train.py", program=programs.SKIPS_A_CALL)
    wait_for_processes(started, 5)  # the launcher, two processes, and a watcher of each
    os.kill(started.process.pid, signal.SIGKILL)
    assert wait_until_gone(started.mark) == []
    started.wait()


def wait_for_processes(started, count):
    end = time.monotonic() + 120
    while len(marked_processes(started.mark)) < count:
        assert time.monotonic() < end, "the processes do not start"
        time.sleep(0.2)


@pytest.mark.long
def test_ctrl_c_ends_all_processes(tmp_path):
    started = Launch(tmp_path, "--on", "local:2", "train.py", program=programs.SKIPS_A_CALL)
    wait_for_processes(started, 5)
    os.kill(started.process.pid, signal.SIGINT)
    done = started.wait()
    assert done.code == 130
    assert wait_until_gone(started.mark) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("program", "code", "sentences"),
    [
        ("FINISHES_EARLY", "collective_not_reached", ["process 1 has finished the program"]),
        (
            "BRANCH_IN_THE_PROGRAM",
            "collective_not_reached",
            ["'clipped'", "train.py:18 (<lambda>)", "process 2 has finished", "a branch is taken"],
        ),
        ("STOPS_ITSELF", "collective_not_reached", ["process 1 is stopped (SIGSTOP)"]),
        ("EXITS", "process_died", ["Process 0", "exit code 7"]),
        ("RAISES", "process_raised", ["In process 1:", "no shard of the data", "train.py:18"]),
        ("RAISES_EVERYWHERE", "process_raised", ["In processes 0, 1 and 2:"]),
    ],
)
def test_each_kind_of_hang_and_failure_is_named(program, code, sentences, tmp_path):
    done = launch(tmp_path, "--on", "local:3", *HANG, program=getattr(programs, program))
    assert done.code == 1
    assert done.error.startswith(f"[launch.{code}]")
    assert [text for text in sentences if text not in done.error] == []
    assert done.left_running() == []


@pytest.mark.long
def test_a_slow_process_is_not_called_hung(tmp_path):
    done = launch(tmp_path, "--on", "local:2", *HANG, program=programs.SLOW_ON_ONE_PROCESS)
    assert done.code == 0, done.stderr


@pytest.mark.long
def test_the_time_limit_says_where_each_process_was(tmp_path):
    done = launch(
        tmp_path, "--on", "local:2", "--stall-limit", "600", "--time-limit", "25", "train.py",
        program=programs.SKIPS_A_CALL,
    )  # fmt: skip
    assert done.code == 124
    assert "process 1 runs the program's own lines, at train.py:20" in done.error
    assert done.left_running() == []


@pytest.mark.long
def test_a_function_gets_its_arguments_and_a_mesh_of_all_devices(tmp_path):
    (tmp_path / "model.py").write_text(
        "import jax, jax.numpy as jnp\n"
        "from jax.sharding import PartitionSpec as P\n"
        "def product(x, w):\n"
        "    return jax.lax.with_sharding_constraint(jnp.tanh(x @ w), P('data', None))\n"
    )
    done = launch(
        tmp_path, "--on", "local:2", "--devices-per-process", "2", "--mesh", "data=2,model=2",
        "--verify", "--json", "report.json", "model.py:product",
        "f32[8,6]@data,model", "f32[6,10]@model,None",
    )  # fmt: skip
    assert done.code == 0, done.stderr
    (program,) = read_report(tmp_path).programs
    assert (program.key, program.n_calls) == ("product", 3)
    assert program.outputs[0].sharding == "P('data')"
    assert {call.mesh_axes for call in program.collectives} == {("model",)}


@pytest.mark.long
def test_a_program_that_differs_by_process_differs_from_the_simulation(tmp_path):
    program = programs.TRAINS.replace("batch = ", "batch = (1 + rank) * ")
    done = launch(
        tmp_path, "--on", "local:2", "--verify", "--json", "report.json", "train.py",
        program=program,
    )  # fmt: skip
    assert done.code == 1
    differences = read_report(tmp_path).verification.differences
    assert {difference.kind for difference in differences} == {"values"}
