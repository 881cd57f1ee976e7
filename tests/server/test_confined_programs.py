"""Programs in the sandbox of the lab: every way one can end becomes a sentence with its line."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace

import pytest

from shardlab.course.cancellable_pool import CancellablePool
from shardlab.sandbox.frame import Frame, InvalidFrame
from shardlab.sandbox.process import ProcessLimits
from shardlab.server.confined.confined_client import ConfinedFailure, run_confined
from shardlab.server.confined.lab_pool import open_lab_pool
from shardlab.server.confined.messages import ConfinedResponse, ProgramError

# Small, so that a limit is reached soon; a correct program stays far below.
SMALL = ProcessLimits(cpu_seconds=4.0, wall_seconds=60.0)
SECRET = "the seed of a hidden case"


@pytest.fixture(scope="module")
def hidden_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "practice.db").write_text(SECRET)
    return folder


@pytest.fixture(scope="module")
def pool(hidden_folder):
    with open_lab_pool([hidden_folder]) as pool:
        yield pool


def record(pool, source, limits=None, **options):
    payload = {
        "source": textwrap.dedent(source),
        "target": None,
        "mesh": "data=4",
        "hardware": None,
        "edit": None,
        **options,
    }
    return run_confined(pool, "record", payload, *([limits] if limits else []))


def failure_of(pool, source, limits=SMALL):
    with pytest.raises(ConfinedFailure) as caught:
        record(pool, source, limits)
    return caught.value.error


def outcome_of(pool, source, limits=SMALL):
    """Return kind, message and line of a failure, in the recording or instead of it."""
    try:
        failure = record(pool, source, limits)["failure"]
    except ConfinedFailure as caught:
        return caught.error.kind, caught.error.message, caught.error.line
    return failure["kind"], failure["message"], failure["line"]


PROGRAM = """
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    def body(x):
        return jax.lax.psum(x, "data")

    def step(x):
        return jax.shard_map(body, in_specs=P("data"), out_specs=P())(x)

    def step_args():
        return (jnp.arange(8.0),)
"""


def test_a_program_is_recorded(pool):
    recording = record(pool, PROGRAM)
    assert recording["failure"] is None
    assert recording["mesh"] == [["data", 4]]
    assert any(step["collective"] for step in recording["steps"])


def test_the_edits_of_a_program_are_listed(pool):
    payload = {"source": textwrap.dedent(PROGRAM), "mesh": "data=4"}
    edits = run_confined(pool, "edits", payload)["edits"]
    assert any(edit["line"] == 7 for edit in edits)
    broken = record(pool, PROGRAM, edit=edits[0]["id"])
    assert broken["sources"][0]["text"] != textwrap.dedent(PROGRAM)


# ------------------------------------------------------- errors of the program, with their line


def test_a_syntax_error_has_its_line(pool):
    failure = record(pool, "x = 1\ny = (\n")["failure"]
    assert (failure["kind"], failure["line"]) == ("syntax", 2)


def test_an_exception_has_its_line_and_no_traceback_of_ours(pool):
    failure = record(pool, "def f():\n    raise ValueError('no good')\nf()\n")["failure"]
    assert failure["line"] == 2
    assert failure["message"] == "ValueError: no good"
    assert "shardlab" not in json.dumps(failure)


@pytest.mark.parametrize(
    "source", ["raise SystemExit(3)", "raise KeyboardInterrupt", "raise BaseException('x')"]
)
def test_an_exception_that_is_no_error_is_a_sentence_too(pool, source):
    kind, message, line = outcome_of(pool, source)
    assert kind in ("exit", "exception", "error")
    assert line == 1
    assert "Traceback" not in message


def test_endless_recursion_is_an_exception(pool):
    failure = record(pool, "def f():\n    f()\nf()\n")["failure"]
    assert "RecursionError" in failure["message"]
    assert failure["line"] == 2


# --------------------------------------------------------------------------------------- limits


def test_an_endless_loop_reaches_the_time_limit_at_its_line(pool):
    error = failure_of(pool, "x = 1\nwhile True:\n    x += 1\n")
    assert error.kind == "time"
    assert "4 s of processor time" in error.message
    assert error.line in (2, 3)


def test_a_program_that_sleeps_reaches_the_idle_limit(pool):
    limits = replace(SMALL, idle_seconds=1.0)
    assert failure_of(pool, "import time\ntime.sleep(3600)\n", limits).kind == "time"


def test_too_much_memory_is_a_sentence(pool):
    source = "data = []\nwhile True:\n    data.append(bytearray(50_000_000))\n"
    kind, message, line = outcome_of(pool, source)
    if kind == "memory":
        assert "1024 MB" in message
    else:  # Python noticed it before the sandbox did
        assert "MemoryError" in message
        assert line == 3


def test_too_much_output_is_a_sentence(pool):
    source = "import os\nwhile True:\n    os.write(1, b'x' * 10_000)\n"
    error = failure_of(pool, source)
    assert error.kind == "output"
    assert "64 KB" in error.message


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos._exit(0)\n",
        "import os\nos._exit(7)\n",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
        "import ctypes\nctypes.string_at(0)\n",
    ],
)
def test_a_program_that_ends_its_process_fails_and_the_next_one_works(pool, source):
    error = failure_of(pool, source)
    assert error.kind in ("crash", "internal")
    assert "process" in error.message
    assert record(pool, PROGRAM)["failure"] is None


# ---------------------------------------------------------------------------------- confinement


@pytest.fixture
def confined_pool(pool):
    if pool.level == "C":
        pytest.skip("this machine has no sandbox: programs run with limits only")
    return pool


@pytest.mark.parametrize(
    "source",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', 80), 5)\n",
        "open('/tmp/shardlab-left-behind', 'w').write('x')\n",
        "import subprocess\nsubprocess.run(['/bin/true'], check=True)\n",
        "import os\nos.kill(1, 9)\n",
        "open('/etc/shadow').read()\n",
    ],
)
def test_network_files_and_processes_are_refused_at_their_line(confined_pool, source):
    failure = record(confined_pool, source)["failure"]
    assert failure is not None
    assert "Error" in failure["message"]
    assert failure["line"] == source.count("\n")


def test_a_program_cannot_read_the_data_folder(confined_pool, hidden_folder):
    source = f"raise ValueError(open({str(hidden_folder / 'practice.db')!r}).read())\n"
    failure = record(confined_pool, source)["failure"]
    assert SECRET not in failure["message"]


# -------------------------------------------------------------------- results are not trusted

SEND_FRAME = """
    import inspect, os, struct
    # The program finds the pipe of its process, and sends a response of its own.
    for frame in inspect.stack():
        if "responses_fd" in frame.frame.f_locals:
            fd = frame.frame.f_locals["responses_fd"]
    header, body = {header!r}, {body!r}
    data = struct.pack("<II", len(header), len(body)) + header + body
    while data:
        data = data[os.write(fd, data):]
    os._exit(0)
"""


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"{}", b""),
        (b"no json", b""),
        (b'{"version": 1, "error": null, "sizes": [9]}', b"\x80\x04no pic"),
        (b'{"version": 1, "error": null, "sizes": [100000]}', b"[" * 100_000),
        (b'{"version": 1, "error": {"kind": 3}, "sizes": [0]}', b""),
        (b'{"version": 99, "error": null, "sizes": [2]}', b"{}"),
    ],
)
def test_a_forged_response_that_is_no_result_is_refused(pool, header, body):
    source = textwrap.dedent(SEND_FRAME).format(header=header, body=body)
    error = failure_of(pool, source)
    assert error.kind in ("protocol", "crash")
    assert "Traceback" not in error.message


def test_a_response_that_is_too_large_is_refused_before_it_is_read(pool):
    header = b'{"version": 1, "error": null, "sizes": [4000000000]}'
    source = textwrap.dedent(SEND_FRAME).format(header=header, body=b"")
    source = source.replace("len(body)) +", "4000000000) +")
    assert failure_of(pool, source).kind in ("protocol", "crash")


def test_the_text_of_an_error_is_limited():
    error = ProgramError(kind="k" * 99, message="m" * 99_999, fix="f" * 99_999)
    response = ConfinedResponse.from_frame(ConfinedResponse(error=error).to_frame())
    assert len(response.error.message) == 8000
    forged = {"kind": "k", "message": "m" * 9000, "line": None, "fix": ""}
    with pytest.raises(InvalidFrame):
        ConfinedResponse.from_frame(Frame({"version": 1, "error": forged}, (b"",)))


def test_a_cancelled_job_starts_no_further_process(pool):
    cancelled = CancellablePool(pool, lambda: RuntimeError("cancelled"))
    cancelled.cancel()
    with pytest.raises(RuntimeError, match="cancelled"):
        record(cancelled, PROGRAM)
