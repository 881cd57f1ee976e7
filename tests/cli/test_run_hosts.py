"""`shardlab run --hosts`: the program runs once on each virtual host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
START = """
    import jax, jax.numpy as jnp, numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec as P
    jax.distributed.initialize()
    host = jax.process_index()
    mesh = jax.make_mesh((jax.device_count(),), ("x",))
"""


@pytest.fixture
def run(tmp_path):
    """Run a program on virtual hosts."""

    def run_program(text, *options, stdin="", start=START):
        (tmp_path / "program.py").write_text(textwrap.dedent(start) + textwrap.dedent(text))
        command = [sys.executable, "-m", "shardlab", "run", *options, "program.py"]
        env = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_NUM_CPU_DEVICES")}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={**env, "PYTHONPATH": str(ROOT / "src")},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    return run_program


def test_lines_of_other_hosts_have_their_number(run):
    done = run(
        """
        name = input("name? ") if host == 0 else None
        for turn in range(3):
            if turn == host:
                print("I am", host, "of", jax.process_count(), len(jax.local_devices()), name)
            multihost_utils.sync_global_devices(str(turn))
        """,
        *("--hosts", "3", "--devices", "6"),
        stdin="ada\n",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[host 1] I am 1 of 3 2 None",
        "[host 2] I am 2 of 3 2 None",
        "name? I am 0 of 3 2 ada",
    ]
    assert done.stderr == (
        "shardlab: simulated 6 devices of 3 hosts on 1 CPU device; meshes: "
        "processes=3,local_devices=2; shard_maps: 0\n"
    )


def test_output_of_each_host_goes_to_a_file(run, tmp_path):
    text = "print(jax.process_index(), jax.device_count())"
    done = run(text, "-q", "--hosts", "2", "--output", "logs", start="import jax\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    files = {file.name: file.read_text() for file in (tmp_path / "logs").iterdir()}
    assert files == {"host-0.txt": "0 16\n", "host-1.txt": "1 16\n"}


def test_a_program_that_never_initializes_is_told_what_real_hosts_would_do(run):
    done = run(
        "print(jax.device_count())", "--hosts", "2", "--output", "first", start="import jax\n"
    )
    assert done.stdout == "16\n"
    assert "note: The program does not call jax.distributed.initialize()" in done.stderr


def test_a_call_of_one_host_only_is_reported_with_both_lines(run):
    done = run(
        """
        rows = jax.make_array_from_process_local_data(NamedSharding(mesh, P("x")), np.ones(4))
        if host == 0:
            print(jnp.sum(rows))
        multihost_utils.sync_global_devices("end")
        """,
        *("--hosts", "2", "--devices", "4"),
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "[simulate.hosts_differ]" in done.stderr
    assert "host 0: jit(_reduce_sum)(float32[8@x]) at program.py:11 (<module>)" in done.stderr
    assert "host 1: jit(_identity_fn)" in done.stderr
    assert "at program.py:12 (<module>), in multihost_utils.sync_global_devices" in done.stderr


def test_a_host_that_waits_for_one_that_has_ended_is_a_deadlock(run):
    done = run(
        """
        if host == 1:
            multihost_utils.sync_global_devices("only host 1")
        """,
        *("--hosts", "2", "--devices", "4"),
    )
    assert done.returncode == 1
    assert "[simulate.hosts_deadlock] The program would hang forever: host 1 waits" in done.stderr
    assert "program.py:10 (<module>), in multihost_utils.sync_global_devices" in done.stderr
    assert "host 0: has ended with exit code 0" in done.stderr


def test_hosts_that_wait_in_the_same_place_are_one_line(run):
    done = run(
        """
        if host > 0:
            multihost_utils.sync_global_devices("without host 0")
        """,
        *("--hosts", "4", "--devices", "4"),
    )
    assert done.returncode == 1
    assert "where: hosts 1, 2 and 3: wait in jit(_identity_fn)" in done.stderr
    assert done.stderr.count("sync_global_devices") == 1


def test_ctrl_c_is_reported_once_and_not_by_each_host(tmp_path):
    (tmp_path / "program.py").write_text(
        "import time, jax\njax.distributed.initialize()\nprint('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "shardlab", "run", "--hosts", "4", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(4):
        assert process.stdout.readline().endswith("ready\n")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, errors = process.communicate(timeout=600)
    assert (process.returncode, errors) == (130, "interrupted\n")


def test_initialize_without_hosts_is_told_about_the_option(tmp_path):
    (tmp_path / "program.py").write_text("import jax\njax.distributed.initialize()\n")
    done = subprocess.run(
        [sys.executable, "-m", "shardlab", "run", "--devices", "4", "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1
    assert "ValueError: coordinator_address should be defined." in done.stderr
    assert "try: `shardlab run --hosts N`" in done.stderr


def test_the_exit_code_is_that_of_the_host_that_failed(run):
    done = run(
        """
        if host == 1:
            raise SystemExit(7)
        multihost_utils.sync_global_devices("others")
        """,
        *("--hosts", "2", "--devices", "4"),
    )
    assert done.returncode == 7
    assert "[simulate.host_failed] Host 1 failed, and host 0 would wait forever." in done.stderr


def test_replicas_that_differ_between_hosts_are_an_error(run):
    done = run(
        """
        replicated = NamedSharding(mesh, P())
        scale = jax.make_array_from_callback((), replicated, lambda _: np.float32(host))
        print(jax.jit(lambda scale: scale * 2)(scale))
        """,
        *("--hosts", "2", "--devices", "4"),
    )
    assert done.returncode == 1
    assert "[simulate.hosts_differ] Argument 'scale' is replicated over the hosts" in done.stderr
    assert "; different on hosts 0 and 1" in done.stderr


def test_initialize_with_another_number_of_processes_is_an_error(run):
    text = "jax.distributed.initialize('localhost:1', 8, 0)"
    done = run(text, "--hosts", "2", start="import jax\n")
    assert done.returncode == 1
    assert "[simulate.invalid_hosts] jax.distributed.initialize was called with" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--hosts", "3", "--devices", "16"), "16 devices cannot be divided among 3 hosts"),
        (("--output", "first"), "give --hosts N"),
        (("--hosts", "2", "--record", "x.html"), "leave --hosts out"),
    ],
)
def test_options_that_do_not_fit_are_rejected(run, options, message):
    done = run("", *options)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


@pytest.mark.long
def test_a_background_thread_of_a_host_may_still_end_the_waiting(run):
    done = run(
        """
        import threading, time
        from jax._src import distributed
        client = distributed.global_state.client
        def later():
            time.sleep(1)
            client.key_value_set("late", "value")
        if host == 1:
            threading.Thread(target=later).start()
        print(client.blocking_key_value_get("late", 600_000))
        try:
            client.blocking_key_value_get("never", 600_000)
        except Exception as error:
            print(str(error)[:17])
        """,
        *("-q", "--hosts", "2", "--devices", "4", "--output", "first"),
    )
    assert done.stdout == "value\nDEADLINE_EXCEEDED\n", done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["hosts", "hosts_hang"])
def test_the_examples_do_what_they_say(name):
    command = [sys.executable, "-m", "shardlab", "run", "--hosts", "4", "--devices", "16"]
    done = subprocess.run(
        [*command, f"examples/{name}.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == (0 if name == "hosts" else 1), done.stderr
    assert ("examples of each host: [12 12 12 12]" in done.stdout) == (name == "hosts")
    assert ("[simulate.hosts_differ]" in done.stderr) == (name == "hosts_hang")
