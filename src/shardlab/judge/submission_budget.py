"""One budget of time and retries for all processes of a submission.

A submission has two workers at a time, and new ones in the place of those that ended. Each of them
alone is limited by its supervisor; this limits all of them together, over all cases.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from shardlab.sandbox.process import ProcessLimits, SandboxedProcess

_MAX_RETRIES = 2  # requests that are sent once more, because something else may be the cause
_MAX_ENDED = 3  # processes; a submission that ends more of them is not judged further


class SubmissionBudget:
    """What the processes of one submission have used. Used by several threads."""

    def __init__(self, limits: ProcessLimits) -> None:
        self.limits = limits
        self._lock = threading.Lock()
        self._processes: list[SandboxedProcess] = []
        self._executing_processes: list[SandboxedProcess] = []
        self._n_pending, self._pending_since, self._busy_seconds = 0, 0.0, 0.0
        self._n_retries, self._n_ended = 0, 0

    def add_process(self, process: SandboxedProcess, *, executes_submission: bool) -> None:
        """Let a process use the budget; it counts also after its end."""
        with self._lock:
            self._processes.append(process)
            if executes_submission:
                self._executing_processes.append(process)
        process.find_exceeded_budget = self.find_exceeded

    @contextlib.contextmanager
    def pending_request(self) -> Iterator[None]:
        """Let the wall clock run. Requests of two workers at the same time count once."""
        with self._lock:
            if not self._n_pending:
                self._pending_since = time.monotonic()
            self._n_pending += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_pending -= 1
                if not self._n_pending:
                    self._busy_seconds += time.monotonic() - self._pending_since

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time of all processes so far."""
        with self._lock:
            processes = list(self._processes)
        return sum(process.cpu_seconds for process in processes)

    @property
    def busy_seconds(self) -> float:
        """Return the wall-clock time during which requests were pending."""
        with self._lock:
            pending = time.monotonic() - self._pending_since if self._n_pending else 0.0
            return self._busy_seconds + pending

    def find_exceeded(self) -> str:
        """Return the limit that all processes together have reached, empty if none."""
        if self.cpu_seconds > self.limits.cpu_seconds:
            return f"{self.limits.cpu_seconds:g} s of processor time"
        if self.busy_seconds > self.limits.wall_seconds:
            return f"{self.limits.wall_seconds:g} s of wall-clock time"
        return ""

    def take_retry(self) -> bool:
        """Return whether a request may be sent once more, and count it."""
        with self._lock:
            self._n_retries += 1
            return self._n_retries <= _MAX_RETRIES

    def count_ended_process(self) -> bool:
        """Count a process that the submission has ended; return whether it may end another."""
        with self._lock:
            self._n_ended += 1
            return self._n_ended < _MAX_ENDED

    @property
    def rejected_calls(self) -> Mapping[str, int]:
        """Return the system calls that the sandbox has rejected where the submission executes.

        Not those of a runner: the compiler tries some of its own there, such as to write a file.
        """
        with self._lock:
            processes = list(self._executing_processes)
        counts: Counter[str] = Counter()
        for process in processes:
            counts.update(process.rejected_calls)
        return dict(sorted(counts.items()))
