"""Messages of the worker: encoded and decoded, read in time, and reported when they are invalid."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shardlab.errors import IndivisibleAxis, ProgramCrashed, TimeLimitReached
from shardlab.execution import worker_client
from shardlab.execution.messages import (
    Failure,
    Job,
    MessageError,
    Progress,
    WorkerResult,
    decode_message,
    encode_message,
)
from shardlab.execution.target import Target
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report

JOB = Job(
    command="check",
    target=Target("file", "a.py", "step"),
    args=("f32[8]",),
    meshes=("data=2", "data=4"),
    memory_limit=1 << 30,
)


class EndedProcess:
    """A process that has exited with code 0."""

    returncode = 0

    def poll(self):
        return 0

    def wait(self, timeout):
        return 0


def wait_for_result(lines, seconds=600):
    return worker_client._wait_for_result(EndedProcess(), lines, JOB, seconds, lambda step: None)


def test_a_result_that_is_read_after_the_worker_has_exited_counts(monkeypatch):
    monkeypatch.setattr(worker_client, "_LAST_MESSAGE_SECONDS", 600)
    lines = queue.SimpleQueue()
    result = WorkerResult(report=Report(findings=()))
    timer = threading.Timer(0.5, lines.put, [encode_message(result).encode()])
    timer.start()
    assert wait_for_result(lines) == result
    timer.join()


@pytest.mark.parametrize(
    "message",
    [
        JOB,
        Progress("loading JAX"),
        Failure(code="program.raised", what="It raised.", where="a.py:3", fix="fix it."),
        WorkerResult(
            report=Report(
                findings=(Finding(code="hazard.deadlock", severity="error", what="It hangs."),)
            ),
            notes=("a note",),
        ),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_survives_the_pipe(message):
    line = encode_message(message)
    assert "\n" not in line
    assert decode_message(line) == message


def test_an_error_keeps_its_class_and_its_parts():
    error = IndivisibleAxis.__new__(IndivisibleAxis)
    super(IndivisibleAxis, error).__init__("Odd.", where="shape (3,)", fix="pad it.")
    restored = Failure.of_error(error).to_error()
    assert type(restored) is IndivisibleAxis
    assert str(restored) == str(error)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("hello", "not a message"),
        ("[]", "not a message"),
        ('{"kind": "progress", "step": ""}', "not a message"),
        ('{"version": 1, "kind": "gossip"}', "not a message"),
        ('{"version": 2, "kind": "progress", "step": ""}', "version 2; this is version 1"),
    ],
)
def test_a_line_that_is_not_a_message_of_this_version_is_reported(line, reason):
    with pytest.raises(MessageError, match=reason):
        decode_message(line)
    lines = queue.SimpleQueue()
    lines.put(line.encode())
    with pytest.raises(ProgramCrashed, match=reason):
        wait_for_result(lines)


def test_the_step_in_which_the_time_limit_was_reached_is_named(monkeypatch):
    # The clock passes the limit when it is read a second time, after the first message.
    times = iter([0.0, 0.0, 100.0])
    monkeypatch.setattr(worker_client.time, "monotonic", lambda: next(times))
    lines = queue.SimpleQueue()
    lines.put(encode_message(Progress("tracing step")).encode())
    with pytest.raises(TimeLimitReached) as caught:
        wait_for_result(lines, seconds=50)
    assert caught.value.where == "shardlab check a.py:step, while tracing step"


def test_paths_below_the_current_folder_become_relative(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert worker_client.shorten_paths(f'"{tmp_path}/a.py"') == '"a.py"'
    monkeypatch.chdir("/")
    assert worker_client.shorten_paths('"/usr/a.py"') == '"/usr/a.py"'


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"[" * 100_000,
        b'{"version": 1, "kind": "result"}',
        b'{"version": 1, "kind": "result", "report": 3, "model": 4, "failure": 5}',
        b'{"version": 1, "kind": "progress"}',
        b'{"version": 1, "kind": "failure", "x": 1}',
        encode_message(WorkerResult()).encode(),
    ],
)
def test_what_a_program_writes_to_the_channel_is_reported_and_no_traceback(line):
    lines = queue.SimpleQueue()
    lines.put(line)
    with pytest.raises(ProgramCrashed, match="The worker process sent"):
        wait_for_result(lines)


HOLDS_THE_LOCK = """
import ctypes, os, sys
print("pid", os.getpid(), file=sys.stderr, flush=True)
if os.fork() == 0:
    import time; time.sleep(3600)
ctypes.PyDLL(None).sleep(3600)  # in C, with the interpreter's lock
"""
CLIENT = """
import sys
from shardlab.execution.messages import Job
from shardlab.execution.target import Target
from shardlab.execution.worker_client import run_worker
job = Job(command="check", target=Target("script", sys.argv[1], ""), memory_limit=1 << 34)
run_worker(job, seconds=3600, report_step=lambda step: None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_holds_the_interpreters_lock_ends_with_the_client(tmp_path, number):
    program = tmp_path / "program.py"
    program.write_text(HOLDS_THE_LOCK)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, program], stderr=subprocess.PIPE, text=True
    )
    group = int(next(line for line in client.stderr if line.startswith("pid")).split()[1])
    client.send_signal(number)
    client.wait()
    client.stderr.close()
    deadline = time.monotonic() + 300
    while group_exists(group):
        assert time.monotonic() < deadline, "the program goes on"
        time.sleep(0.05)


def group_exists(group):
    """Return whether a process group has a process that has not ended."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state not in "ZX":
                return True
    return False


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no real-time signals")
@pytest.mark.parametrize(
    ("number", "text"), [(signal.SIGSEGV, "by SIGSEGV"), (signal.SIGRTMIN + 6, r"by signal \d+")]
)
def test_a_program_that_ends_by_a_signal_is_told_its_name_or_its_number(tmp_path, number, text):
    file = tmp_path / "crash.py"
    file.write_text(f"import os\ndef step(x):\n    os.kill(os.getpid(), {int(number)})\n")
    target = Target("file", str(file), "step")
    job = Job(command="check", target=target, args=("f32[8]",), memory_limit=1 << 34)
    with pytest.raises(ProgramCrashed, match=f"The program's process ended {text} before"):
        worker_client.run_worker(job, seconds=120, report_step=lambda step: None)


def test_the_kernel_ends_a_program_that_has_used_far_more_than_its_time():
    limit = "import resource; from shardlab.execution.worker import _limit_processor_time;"
    limit += "_limit_processor_time(7.5); print(*resource.getrlimit(resource.RLIMIT_CPU))"
    completed = subprocess.run([sys.executable, "-c", limit], capture_output=True, text=True)
    expected = str(math.ceil(7.5 * os.cpu_count()) + 5)
    assert completed.stdout.split() == [expected, expected]
