"""Starts the worker processes, passes their events on, and starts them again when they end."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Literal

from shardlab.server.jobs.queue import JobQueue
from shardlab.server.jobs.worker_messages import DATABASE_VARIABLE, WorkerEvent, WorkerOptions
from shardlab.server.jobs.worker_registry import new_worker_name

_LOG = logging.getLogger("shardlab.server")
_FIRST_BACKOFF_SECONDS = 0.2
_MAX_BACKOFF_SECONDS = 30.0
_STEADY_SECONDS = 60.0  # a worker that ran this long was fine, so the next one starts at once
_STOP_SECONDS = 6.0  # longer than a worker takes to end by itself


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """What the pages say about one worker process."""

    state: Literal["starting", "ready", "failed"] = "starting"
    can_judge: bool = False  # ready for submissions too, a few seconds later
    level: str = ""  # of the sandbox
    failure: str = ""
    pid: int = 0
    n_starts: int = 0


class WorkerSupervisor:
    """Keeps one worker process running, from a thread of its own."""

    def __init__(
        self,
        options: WorkerOptions,
        queue: JobQueue,
        on_change: Callable[[str], None],
        *,
        database_url: str = "",
    ) -> None:
        self._options, self._queue, self._on_change = options, queue, on_change
        self._environment = {**os.environ, DATABASE_VARIABLE: database_url}
        self.status = WorkerStatus()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._is_stopping = threading.Event()
        self._is_settled = threading.Event()  # ready or failed for the first time
        self._thread = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the worker; it gets ready in the background."""
        self._thread.start()

    def wait_until_settled(self, seconds: float) -> WorkerStatus:
        """Return the status once the sandbox of the worker is open or cannot be opened."""
        self._is_settled.wait(seconds)
        return self.status

    def wake(self) -> None:
        """Tell the worker that there is something to do."""
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):  # it has just ended
                os.write(process.stdin.fileno(), b".")

    def stop(self) -> None:
        """End the worker; its jobs go back to the queue."""
        self._is_stopping.set()
        with self._lock:
            process = self._process
            if process is not None and process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        if process is not None:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def _supervise(self) -> None:
        backoff = _FIRST_BACKOFF_SECONDS
        while not self._is_stopping.is_set():
            started = time.monotonic()
            name = new_worker_name()
            self._run_worker(name)
            if self._is_stopping.is_set():
                break
            self._release_jobs(name)
            if time.monotonic() - started > _STEADY_SECONDS:
                backoff = _FIRST_BACKOFF_SECONDS
            self._is_stopping.wait(backoff)
            backoff = min(backoff * 2, _MAX_BACKOFF_SECONDS)

    def _run_worker(self, name: str) -> None:
        """Start a worker and pass its events on until it ends."""
        command = [sys.executable, "-P", "-m", "shardlab.server.jobs.worker"]
        options = replace(self._options, name=name)
        with self._lock:
            if self._is_stopping.is_set():
                return
            process = self._process = subprocess.Popen(
                [*command, options.to_argument()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,  # Ctrl-C is for the web process, which ends the worker
            )
        n_starts = self.status.n_starts + 1
        failure = self.status.failure
        self.status = WorkerStatus(pid=process.pid, n_starts=n_starts, failure=failure)
        assert process.stdout is not None
        self._read_events(process.stdout)
        code = process.wait()
        with self._lock:
            process.stdout.close()
            with contextlib.suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]  # a pipe
        if not self._is_stopping.is_set():
            _LOG.warning("a worker process ended (exit code %d); another one starts", code)
            if self.status.state != "failed":
                self.status = replace(self.status, state="starting", can_judge=False)

    def _read_events(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                event = WorkerEvent.from_line(line)
            except (ValueError, TypeError):  # cut off when the worker was killed
                continue
            if event.kind == "ready":
                self.status = replace(self.status, state="ready", level=event.text, failure="")
                self._is_settled.set()
            elif event.kind == "can_judge":
                self.status = replace(self.status, can_judge=True)
            elif event.kind == "failed":
                self.status = replace(self.status, state="failed", failure=event.text)
                self._is_settled.set()
            self._on_change(event.text if event.kind == "changed" else "")

    def _release_jobs(self, name: str) -> None:
        try:
            if self._queue.release(name, has_crashed=True):
                self._on_change("")
        except Exception:  # the leases end all the same, a few seconds later
            _LOG.exception("the jobs of a worker could not be released")
