"""Launches that something else starts: ssh, Open MPI, SLURM, Kubernetes, Ray."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import types

import pytest

from cluster import launched_programs as programs
from cluster import slurm_cluster
from cluster.launch_command import launch
from shardlab.cluster.cluster_size import check_cluster_size, expected_world_size
from shardlab.cluster.launch_target import parse_launch_target, process_commands, read_hosts
from shardlab.errors import ClusterSplit, InvalidLaunchTarget

SHARDLAB = [sys.executable, "-m", "shardlab"]
# What ssh does with a command, on this machine; one host never answers.
FAKE_SSH = """#!/bin/sh
while [ "$1" != "--" ]; do shift; done
case "$2" in
  silent) exec sleep 3600;;
  down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255;;
esac
exec sh -c "$3"
"""


@pytest.fixture
def ssh_path(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text(FAKE_SSH)
    (folder / "ssh").chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.parametrize(
    "text", ["local", "local:0", "local:9999", "locl:4", "ssh:", "auto:3", "ssh:missing.txt"]
)
def test_other_targets_are_rejected(text):
    with pytest.raises(InvalidLaunchTarget):
        parse_launch_target(text)


@pytest.mark.parametrize(
    "line", ["-oProxyCommand=sh", "node processes=0", "node processes=x", "node port=22", "# none"]
)
def test_a_wrong_line_of_a_hosts_file_is_rejected(line, tmp_path):
    (tmp_path / "hosts").write_text(f"{line}\n")
    with pytest.raises(InvalidLaunchTarget):
        read_hosts(str(tmp_path / "hosts"))


def test_ssh_command_lines_quote_folder_and_environment(tmp_path):
    (tmp_path / "hosts").write_text("node1 processes=2\nme@node2 python=/opt/py # second\n")
    target = parse_launch_target(f"ssh:{tmp_path / 'hosts'}")
    commands = process_commands(target, "/my data", {"XLA_FLAGS": "--a --b"})
    assert [command.host for command in commands] == ["node1", "node1", "me@node2"]
    *ssh, host, remote = commands[2].command
    assert ssh[0] == "ssh"
    assert ssh[-1] == "--"
    assert host == "me@node2"
    assert remote.startswith("cd '/my data' && exec env XLA_FLAGS='--a --b' /opt/py -P -c ")


@pytest.mark.long
def test_hosts_by_ssh_agree_with_the_simulation(tmp_path, ssh_path):
    (tmp_path / "hosts.txt").write_text("localhost\nme@localhost\n")
    done = launch(
        tmp_path, "--on", "ssh:hosts.txt", "--platform", "cpu", "--verify", "train.py",
        program=programs.TRAINS, PATH=ssh_path,
    )  # fmt: skip
    assert done.code == 0, done.stderr
    assert "simulation and 2 real processes agree on all 4 outputs" in done.stdout
    assert done.left_running() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("host", "code", "sentence"),
    [
        ("silent", "never_arrived", "process 1 on silent is loading Python and JAX"),
        ("down", "process_died", "Process 1 on down ended by ssh (exit code 255"),
    ],
)
def test_a_host_that_never_arrives_is_named(host, code, sentence, tmp_path, ssh_path):
    (tmp_path / "hosts.txt").write_text(f"localhost\n{host}\n")
    done = launch(
        tmp_path, "--on", "ssh:hosts.txt", "--platform", "cpu", "--stall-limit", "3", "train.py",
        program=programs.TRAINS, PATH=ssh_path,
    )  # fmt: skip
    assert done.code == 1
    assert done.error.startswith(f"[launch.{code}]")
    assert sentence in done.error
    assert done.left_running() == []


def run_in_cluster(folder, command, program, environment=None):
    (folder / "train.py").write_text(program)
    arguments = ("--platform", "cpu", "--stall-limit", "5", "--verify", "train.py")
    return subprocess.run(
        [*command, *SHARDLAB, "launch", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"]
needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs openmpi-bin")
needs_slurm = pytest.mark.skipif(not slurm_cluster.is_installed(), reason="needs slurm-wlm")
AGREES = "simulation and 2 real processes agree on all 4 outputs"


@pytest.mark.long
@needs_mpi
def test_open_mpi_starts_a_cluster(tmp_path):
    done = run_in_cluster(tmp_path, MPIRUN, programs.TRAINS)
    assert done.returncode == 0, done.stderr
    assert AGREES in done.stdout
    assert done.stdout.count("real processes agree") == 1  # process 0 reports


@pytest.mark.long
@needs_mpi
@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("SKIPS_A_CALL", "which process 1 on"),
        ("RAISES", "In process 1 on"),
    ],
)
def test_process_0_names_a_hang_without_a_launcher(program, sentence, tmp_path):
    done = run_in_cluster(tmp_path, MPIRUN, getattr(programs, program))
    assert done.returncode == 1
    assert sentence in done.stderr


@pytest.mark.long
@needs_slurm
def test_slurm_starts_a_cluster(tmp_path):
    folder = tmp_path / "slurm"
    folder.mkdir()
    with slurm_cluster.slurm_cluster(folder) as environment:
        command = ["srun", "-n", "2", "--overcommit"]
        done = run_in_cluster(tmp_path, command, programs.TRAINS, environment)
        assert done.returncode == 0, done.stderr
        assert AGREES in done.stdout
        done = run_in_cluster(tmp_path, command, programs.SKIPS_A_CALL, environment)
        assert done.returncode != 0
        assert "[launch.collective_not_reached]" in done.stderr


@pytest.mark.long
def test_variables_of_an_indexed_job_connect_its_processes(tmp_path):
    # As a Kubernetes job sets them in its template, the last one from JOB_COMPLETION_INDEX.
    (tmp_path / "train.py").write_text(programs.TRAINS)
    port = slurm_cluster._free_ports(1)[0]
    processes = [
        subprocess.Popen(
            [*SHARDLAB, "launch", "--platform", "cpu", "--verify", "train.py"],
            cwd=tmp_path,
            env={
                **os.environ,
                "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": index,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in ("0", "1")
    ]
    outputs = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert AGREES in outputs[0][0]
    assert outputs[1][0] == ""


# --------------------------------------------------------------------------- N clusters of one


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({"SLURM_NTASKS": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "2", "WORLD_SIZE": "3"}, 2),
        ({"WORLD_SIZE": "many"}, None),
        ({}, None),
    ],
)
def test_the_number_of_started_processes_is_read_from_the_environment(environment, count):
    found = expected_world_size(environment)
    assert (found and found.count) == count


def test_workers_of_ray_that_are_not_connected_are_refused(monkeypatch):
    # What Ray's JaxTrainer does on CPUs: each worker knows of four, and JAX of itself alone.
    train = types.ModuleType("ray.train")
    train.get_context = lambda: types.SimpleNamespace(get_world_size=lambda: 4)
    monkeypatch.setitem(sys.modules, "ray.train", train)
    with pytest.raises(ClusterSplit, match=r"4 processes were started .* JAX sees only itself"):
        check_cluster_size(1, 2)
    check_cluster_size(4, 2)


def test_a_pod_without_the_kubernetes_package_is_told_what_to_set(tmp_path):
    done = launch(
        tmp_path, "train.py", program=programs.TRAINS,
        KUBERNETES_SERVICE_HOST="10.0.0.1", JOB_COMPLETION_INDEX="0",
    )  # fmt: skip
    assert done.code == 2
    assert "[launch.no_cluster] This is a pod of Kubernetes" in done.stderr
    assert "JAX_PROCESS_ID (from JOB_COMPLETION_INDEX)" in done.stderr


def test_processes_that_find_no_cluster_are_refused(tmp_path):
    done = launch(tmp_path, "train.py", program=programs.TRAINS, WORLD_SIZE="4")
    assert done.code == 2
    assert "[launch.split_cluster] 4 processes were started (by WORLD_SIZE)" in done.stderr
    assert "loss" not in done.stderr  # nothing ran
