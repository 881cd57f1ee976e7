"""Messages of the worker: encoded and decoded, read in time, and reported when they are invalid."""

from __future__ import annotations

import queue
import threading

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
    assert worker_client._shorten_paths(f'"{tmp_path}/a.py"') == '"a.py"'
    monkeypatch.chdir("/")
    assert worker_client._shorten_paths('"/usr/a.py"') == '"/usr/a.py"'
