"""Runs a user's program in a child process, under limits of time, memory and output.

The process that the user starts never loads JAX: it starts this child, forwards what the child
prints, and renders the records that come back. Messages are lines of JSON on the child's standard
output; what the program itself prints goes to standard error, so a report in a pipe stays clean.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from shardlab.errors import LabError, ProgramCrashed, TimeLimitReached
from shardlab.execution.messages import (
    Failure,
    Job,
    MessageError,
    Progress,
    WorkerResult,
    decode_message,
    encode_message,
)

# Bytes of the program's output that are forwarded; the rest is dropped so that a program in an
# endless print loop fills neither memory nor the terminal.
MAX_OUTPUT = 256 * 1024

_SOURCE_ROOT = str(Path(__file__).parents[2])
# -P: otherwise the current folder would come before the standard library, and a file called
# json.py in it would break the worker.
_WORKER_CODE = (
    "import sys; sys.path.append(sys.argv.pop(1)); "
    "from shardlab.execution.worker import main; main()"
)
_POLL_SECONDS = 0.2
_LAST_MESSAGE_SECONDS = 2.0
_TERMINATE_SECONDS = 0.5
_INTERRUPTED_SECONDS = 60.0

Lines = queue.SimpleQueue[bytes]  # an empty line marks the end of the stream
ReportStep = Callable[[str], None]


def run_worker(job: Job, *, seconds: float, report_step: ReportStep) -> WorkerResult:
    """Run a job and return its result; raise the error that ended it.

    `report_step` is called with a line of text whenever the worker begins a step, and with an empty
    one in between, so that it can update an elapsed time.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _WORKER_CODE, _SOURCE_ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Virtual devices need only the CPU backend; initializing an accelerator takes seconds.
        env={"JAX_PLATFORMS": "cpu", **os.environ},
    )
    with _supervise(process) as lines:
        assert process.stdin
        # Stays open: when it closes, the worker knows that this process is gone.
        with contextlib.suppress(OSError):
            process.stdin.write(encode_message(replace(job, cpu_seconds=seconds)).encode() + b"\n")
            process.stdin.flush()
        try:
            message = _wait_for_result(process, lines, job, seconds, report_step)
        except KeyboardInterrupt:
            if job.command != "autoshard":
                raise
            report_step("interrupted; waiting for the best shardings so far")
            message = _interrupt(process, lines, job)
    if isinstance(message, Failure):
        raise error_from_failure(message)
    return message


def _interrupt(process: subprocess.Popen[bytes], lines: Lines, job: Job) -> WorkerResult:
    """Let a search end with what it has; raise KeyboardInterrupt if that is nothing."""
    process.send_signal(signal.SIGINT)
    try:
        message = _wait_for_result(process, lines, job, _INTERRUPTED_SECONDS, lambda step: None)
    except LabError:
        raise KeyboardInterrupt from None
    if isinstance(message, Failure):
        raise KeyboardInterrupt
    return message


def error_from_failure(failure: Failure) -> LabError:
    """Return the worker's error, after printing the program's own traceback."""
    if failure.traceback:
        sys.stderr.write(failure.traceback + "\n")
        sys.stderr.flush()
    return failure.to_error()


def _wait_for_result(
    process: subprocess.Popen[bytes],
    lines: Lines,
    job: Job,
    seconds: float,
    report_step: ReportStep,
) -> WorkerResult | Failure:
    """Read messages until the result, the end of the process, or the time limit."""
    deadline = time.monotonic() + seconds
    step = ""
    while (remaining := deadline - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=min(remaining, _POLL_SECONDS))
        except queue.Empty:
            if process.poll() is None:
                report_step("")
                continue
            line = _read_last_line(lines)
        if not line:
            raise _describe_crash(process, _locate_step(job, step))
        try:
            message = decode_message(shorten_paths(line.decode("utf-8", "replace")))
        except MessageError as error:
            raise _invalid_message(str(error), job, step) from None
        if isinstance(message, WorkerResult) and not _has_result(message, job):
            raise _invalid_message(f"a result without what {job.command} needs", job, step)
        if isinstance(message, (WorkerResult, Failure)):
            return message
        if isinstance(message, Progress):
            step = message.step
            report_step(step)
    raise TimeLimitReached(
        f"The program was still running after {seconds:g} s and was stopped.",
        where=_locate_step(job, step),
        fix=_time_limit_advice(job),
    )


def _time_limit_advice(job: Job) -> str:
    advice = "look for a loop that does not end, or allow more time (--time-limit 600)"
    can_scale = job.command == "check" and job.target.kind != "script" and not job.scaled
    if can_scale and job.meshes:
        return f"{advice}, or check on a scaled-down mesh with equal shards (--scaled)."
    return f"{advice}."


def _has_result(result: WorkerResult, job: Job) -> bool:
    """Return whether a result has the record of its command, or an error instead of it."""
    records = {
        "autoshard": result.autosharding,
        "check": result.report,
        "plan": result.model,
        "record": result.recording,
        "trace": result.traces,
    }
    return result.failure is not None or records[job.command] is not None


def _invalid_message(message: str, job: Job, step: str) -> ProgramCrashed:
    return ProgramCrashed(
        f"The worker process sent {message}.",
        where=_locate_step(job, step),
        fix="check that the program does not write to file descriptors that it did not open, and "
        "that only one shardlab is installed.",
    )


def _locate_step(job: Job, step: str) -> str:
    return f"{job.command_line}{', while ' + step if step else ''}"


def _read_last_line(lines: Lines) -> bytes:
    """Return a line that the worker wrote just before it exited.

    Not until the pipe closes: the program's own children may keep it open.
    """
    try:
        return lines.get(timeout=_LAST_MESSAGE_SECONDS)
    except queue.Empty:
        return b""


def shorten_paths(line: str) -> str:
    """Make paths below the current folder relative, as the user would write them."""
    folder = json.dumps(os.path.join(os.getcwd(), ""))[1:-1]
    # In the root folder every path would lose its slashes.
    return line if folder == "/" else line.replace(folder, "")


def _describe_crash(process: subprocess.Popen[bytes], where: str) -> ProgramCrashed:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=_LAST_MESSAGE_SECONDS)
    code = process.returncode
    status = f"with exit code {code}"
    if code is not None and code < 0:
        known = {number.value for number in signal.Signals}  # real-time signals have no name
        status = f"by {signal.Signals(-code).name if -code in known else f'signal {-code}'}"
    fix = "look at what it printed above; it may have called os._exit, or crashed in native code."
    if code == -signal.SIGKILL:  # Linux's out-of-memory killer sends it
        fix = "it may have run out of memory: try smaller shapes, or set --memory-limit."
    return ProgramCrashed(
        f"The program's process ended {status} before it was done.", where=where, fix=fix
    )


# ---------------------------------------------------------------------- the lifetime of the process


@contextlib.contextmanager
def _supervise(process: subprocess.Popen[bytes]) -> Iterator[Lines]:
    """Yield the worker's message lines, forward the program's output, leave no process behind."""
    lines: Lines = queue.SimpleQueue()
    output_reader = _start_thread(_forward_output, process.stderr)
    line_reader = _start_thread(_read_lines, process.stdout, lines)
    try:
        yield lines
    except BaseException:
        # SIGTERM first, so that the program can remove its temporary files.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_TERMINATE_SECONDS)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)  # start_new_session made it a group leader
            else:
                process.kill()
        process.wait()
        _close_pipe(process.stdin)
        for reader, pipe in ((output_reader, process.stderr), (line_reader, process.stdout)):
            # A grandchild that left the group on purpose may keep the pipe open forever; closing
            # it under a thread that is still reading would block.
            reader.join(timeout=_LAST_MESSAGE_SECONDS)
            if not reader.is_alive():
                _close_pipe(pipe)


def _read_lines(pipe: IO[bytes], lines: Lines) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(b"")


def _forward_output(pipe: IO[bytes]) -> None:
    remaining = MAX_OUTPUT
    while chunk := os.read(pipe.fileno(), 1 << 16):
        if remaining > 0:
            _write_stderr(chunk[:remaining])
            if len(chunk) > remaining:
                _write_stderr(b"\n... the program printed more; the rest is not shown\n")
        remaining -= len(chunk)


def _write_stderr(chunk: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        # Not flushed: standard error is line-buffered, and rich's status line would redraw.
        sys.stderr.write(chunk.decode("utf-8", "replace"))


def _close_pipe(pipe: IO[bytes] | None) -> None:
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.close()


def _start_thread(target: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread
