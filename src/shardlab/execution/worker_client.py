"""A person's program in a process of its own: limited in time and output, and never left behind.

The process that a person starts loads no JAX: it starts this child, shows what the child prints,
and draws what comes back. Results travel as lines of JSON on the child's standard output; what the
program itself prints goes to standard error, so that a report in a pipe holds nothing else.
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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from shardlab.errors import LabError, ProgramCrashed, TimeLimitReached

# What a program may print before the rest is dropped: more than anybody reads, little to hold.
MOST_SHOWN = 256 * 1024

_ROOT = str(Path(__file__).parents[2])
# Without -P the folder a person stands in would come before the standard library.
_START = "import sys; sys.path.append(sys.argv.pop(1)); from shardlab.execution.worker import main; main()"
_TICK = 0.2

Lines = queue.SimpleQueue[bytes]  # an empty one is the end


def run_worker(
    job: Mapping[str, Any], *, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return what the worker answers to `job`; raise what it met.

    `tell` is called with a line of text whenever the worker begins something, and with an empty
    one now and then, so that it can show how long things take.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _START, _ROOT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Virtual devices need the CPU alone; an accelerator would be started for nothing.
        env={"JAX_PLATFORMS": "cpu", **os.environ},
    )
    with _ended(process) as lines:
        assert process.stdin
        # Left open: its end tells the child that we are gone, however we went.
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
        answer = _answer(process, lines, seconds, tell, str(job["shown"]))
    if "error" in answer:
        raise error_from_worker(answer)
    result: dict[str, Any] = answer["result"]
    return result


def _answer(
    process: subprocess.Popen[bytes],
    lines: Lines,
    seconds: float,
    tell: Callable[[str], None],
    shown: str,
) -> dict[str, Any]:
    """Wait for the last line the worker says."""
    end = time.monotonic() + seconds
    doing = ""
    while (left := end - time.monotonic()) > 0:
        try:
            line = lines.get(timeout=min(left, _TICK))
        except queue.Empty:
            line = b"{}" if process.poll() is None else _last_line(lines)
        if not line:
            raise _died(process, shown, doing)
        message = json.loads(line)
        if "result" in message or "error" in message:
            return _from_here(message)
        doing = message.get("progress", doing)
        tell(message.get("progress", ""))
    raise TimeLimitReached(
        f"The program was still running after {seconds:g} s, and was stopped.",
        where=f"{shown}{', while ' + doing if doing else ''}",
        fix="look for a loop that does not end, or allow more time (--time-limit 600).",
    )


def _last_line(lines: Lines) -> bytes:
    """Return what a worker that is gone may have said before; it is read a moment later.

    Not waited for until the pipe ends: the program's own children may hold it open.
    """
    try:
        return lines.get(timeout=2)
    except queue.Empty:
        return b""


def _from_here(message: dict[str, Any]) -> dict[str, Any]:
    """Name files below the folder that a person stands in as they would: by the rest."""
    here = json.dumps(os.path.join(os.getcwd(), ""))[1:-1]
    shorter: dict[str, Any] = json.loads(json.dumps(message).replace(here, ""))
    return shorter


def _read_lines(pipe: IO[bytes], lines: Lines) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(b"")


def _died(process: subprocess.Popen[bytes], shown: str, doing: str) -> ProgramCrashed:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    code = process.returncode
    how = f"with exit code {code}"
    if code is not None and code < 0:
        how = f"by {signal.Signals(-code).name}"
    fix = "look at what it printed above; it may have called os._exit, or crashed in native code."
    if code == -9:  # what the system does to a process for which there is no memory
        fix = "it may have been too large for this machine: try smaller shapes, or --memory-limit."
    return ProgramCrashed(
        f"The program's process ended {how} before it was done.",
        where=f"{shown}{', while ' + doing if doing else ''}",
        fix=fix,
    )


def error_from_worker(answer: Mapping[str, Any]) -> LabError:
    """Return the worker's error as what it was there, after printing the program's traceback."""
    if answer.get("traceback"):
        sys.stderr.write(answer["traceback"] + "\n")
        sys.stderr.flush()
    parts = answer["error"]
    kind = next((k for k in _kinds(LabError) if k.code == parts["code"]), LabError)
    error = kind.__new__(kind)
    LabError.__init__(error, parts["what"], where=parts["where"], fix=parts["fix"])
    return error


def _kinds(kind: type[LabError]) -> Iterator[type[LabError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _kinds(each)


# ------------------------------------------------------------------------------ the process's life


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[Lines]:
    """Yield the lines that the worker says, show what the program prints, leave nothing behind."""
    heard: Lines = queue.SimpleQueue()
    output = _thread(_pass_on, process.stderr)
    lines = _thread(_read_lines, process.stdout, heard)
    try:
        yield heard
    except BaseException:
        # A moment to take away temporary files; whoever does not use it is ended all the same.
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        raise
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group of its own
            else:
                process.kill()
        process.wait()
        _close(process.stdin)
        for reader, pipe in ((output, process.stderr), (lines, process.stdout)):
            # A process that has left the group on purpose may hold the pipe open for ever.
            reader.join(timeout=2)
            if not reader.is_alive():
                _close(pipe)


def _close(pipe: IO[bytes] | None) -> None:
    assert pipe is not None
    with contextlib.suppress(OSError):
        pipe.close()


def _pass_on(pipe: IO[bytes]) -> None:
    left = MOST_SHOWN
    while chunk := os.read(pipe.fileno(), 1 << 16):
        if left > 0:
            _write(chunk[:left])
            if len(chunk) > left:
                _write(b"\n... the program printed more; the rest is not shown\n")
        left -= len(chunk)


def _write(chunk: bytes) -> None:
    with contextlib.suppress(OSError, ValueError):
        # Not flushed: it is buffered by line, and rich would draw an empty line for it.
        sys.stderr.write(chunk.decode("utf-8", "replace"))


def _thread(target: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread
