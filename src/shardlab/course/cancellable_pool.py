"""A sandbox pool whose processes all end as soon as it is cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shardlab.sandbox.process import ProcessLimits, SandboxedProcess, SandboxPool


class CancellablePool:
    """Starts processes of another pool until `cancel` is called, which also ends those that run.

    A process that is started afterwards raises the exception that `make_error` returns.
    """

    def __init__(self, pool: SandboxPool, make_error: Callable[[], Exception]) -> None:
        self.level, self.confinement = pool.level, pool.confinement
        self._pool, self._make_error = pool, make_error
        self._processes: list[SandboxedProcess] = []
        self.is_cancelled = False
        # Without it a process could start between the check and the end of its siblings.
        self._lock = threading.Lock()

    def start_process(self, role: str, limits: ProcessLimits) -> SandboxedProcess:
        with self._lock:
            if self.is_cancelled:
                raise self._make_error()
            process = self._pool.start_process(role, limits)
            self._processes.append(process)
        return process

    def cancel(self) -> None:
        """End the processes; a request that is pending raises `ProcessEnded`."""
        with self._lock:
            self.is_cancelled = True
            processes, self._processes = self._processes, []
        for process in processes:
            process.abort()

    def close(self) -> None:
        self._pool.close()
