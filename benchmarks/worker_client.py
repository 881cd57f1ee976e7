"""Starts benchmark workers, sends them requests, and ends them at a time limit."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import selectors
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.worker import Response

# "ValueError: ...", or XLA's "F1115 21:15:07.323269 31253 rendezvous.cc:116] ..."
_REASON = re.compile(r"[\w.]*(Error|Exception|Interrupt)\b|F\d{4} ")
_REASON_PREFIX = re.compile(r"F\d{4} [^\]]*\] ")

ROOT = Path(__file__).resolve().parent.parent


class NotMeasured(Exception):
    """A variant has no measurement; the message gives the reason and goes into the table."""


@dataclasses.dataclass(kw_only=True)
class WorkerClient:
    """A running worker process, and the time limit for each of its responses."""

    name: str
    process: subprocess.Popen[bytes]
    log: Any
    limit_s: float

    def request(self, method: str, **arguments: Any) -> Response:
        """Call a method of the worker. Raises `NotMeasured` on a crash or at the time limit."""
        assert self.process.stdin is not None
        line = json.dumps({"method": method, **arguments}) + "\n"
        # A worker that has crashed closes the pipe; reading its response reports the reason.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(line.encode())
            self.process.stdin.flush()
        return self.read_response()

    def read_response(self) -> Response:
        """Return the next response. Raises `NotMeasured` on a crash or at the time limit."""
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            # A response is one short line that is flushed at once, so readable means complete.
            ready = selector.select(self.limit_s)
        if not ready:
            self.close()
            raise NotMeasured(f"over the limit of {self.limit_s:g} s")
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise NotMeasured(f"failed: {self._crash_reason()}")
        return dict(json.loads(line))

    def _crash_reason(self) -> str:
        """Return the log line with the reason: a Python exception, or XLA's fatal message."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").splitlines()
        reasons = [line for line in lines if _REASON.match(line)] or lines[-1:]
        message = _REASON_PREFIX.sub("", reasons[-1])[:160] if reasons else "no message"
        return f"{message} (exit code {self.process.returncode})"

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def start_worker(name: str, command: list[str], limit_s: float) -> Iterator[WorkerClient]:
    """Start a worker, wait until it is ready, and end it when the block ends."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=_worker_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,  # a file: a pipe that is not read would block a worker that logs a lot
        )
        client = WorkerClient(name=name, process=process, log=log, limit_s=limit_s)
        try:
            client.read_response()  # {"ready": true}
            yield client
        finally:
            client.close()


def _worker_environment() -> dict[str, str]:
    """Return this environment without settings that would change what a worker measures."""
    # A shared compilation cache would let one variant reuse the compilation of another.
    hidden = ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return {**inherited, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}
