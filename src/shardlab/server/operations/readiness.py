"""Whether this process should get requests: what a load balancer and an operator ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardlab.server.database.engine import HEAD_REVISION, Database, database_revision
from shardlab.server.jobs.job_service import JobService
from shardlab.server.operations.queue_figures import WorkerView, count_active_jobs

_CHECK_SECONDS = 5.0  # a database that does not answer in this time is not reachable
_CACHE_SECONDS = 1.0  # however often somebody asks, the database is asked once


@dataclass(frozen=True, kw_only=True)
class ReadinessCheck:
    """One condition, and what is wrong if it does not hold."""

    name: str
    ok: bool
    message: str = ""


class Readiness:
    """Checks the conditions of one web process."""

    def __init__(
        self,
        database: Database,
        jobs: JobService,
        list_workers: Callable[[], tuple[WorkerView, ...]],
        max_jobs: int,
    ) -> None:
        self._database, self._jobs = database, jobs
        self._list_workers, self._max_jobs = list_workers, max_jobs
        self.is_draining = False
        self._checked = float("-inf")
        self._checks: tuple[ReadinessCheck, ...] = ()
        self._lock = asyncio.Lock()

    def begin_drain(self) -> None:
        """Say from now on that this process ends soon."""
        self.is_draining = True

    async def check(self) -> tuple[ReadinessCheck, ...]:
        """Return every condition; the process is ready if all hold."""
        async with self._lock:
            if time.monotonic() - self._checked > _CACHE_SECONDS:
                self._checks = await self._check_services()
                self._checked = time.monotonic()
            return (self._check_draining(), *self._checks)

    async def _check_services(self) -> tuple[ReadinessCheck, ...]:
        """Return the conditions that need the database."""
        try:
            # In a thread: one that hangs must hold up neither this check nor other requests.
            return await asyncio.wait_for(asyncio.to_thread(self._read_database), _CHECK_SECONDS)
        except TimeoutError:
            message = f"The database does not answer within {_CHECK_SECONDS:.0f} s."
        except Exception as error:
            # The type alone: a message can have the address and the user of the database.
            message = f"The database cannot be used ({type(error).__name__}); the log says more."
        unknown = "This is not known without the database."
        return (
            ReadinessCheck(name="database", ok=False, message=message),
            *(
                ReadinessCheck(name=name, ok=False, message=unknown)
                for name in ("schema", "queue", "workers")
            ),
        )

    def _read_database(self) -> tuple[ReadinessCheck, ...]:
        revision = database_revision(self._database.engine)
        # A newer one is fine: an upgrade adds first and removes in a later release, so this process
        # serves on while the next release starts beside it.
        has_schema = revision >= HEAD_REVISION
        schema = f"The schema has version {revision or 'none'}; this release needs {HEAD_REVISION}."
        n_active = count_active_jobs(self._database)
        has_room = n_active < self._max_jobs
        queue = f"The queue is full: {n_active} of {self._max_jobs} jobs."
        return (
            ReadinessCheck(name="database", ok=True),
            ReadinessCheck(name="schema", ok=has_schema, message="" if has_schema else schema),
            ReadinessCheck(name="queue", ok=has_room, message="" if has_room else queue),
            self._check_workers(),
        )

    def _check_draining(self) -> ReadinessCheck:
        message = "This process ends soon; it takes no new connections." if self.is_draining else ""
        return ReadinessCheck(name="not draining", ok=not self.is_draining, message=message)

    def _check_workers(self) -> ReadinessCheck:
        workers = self._list_workers()
        if any(worker.is_alive for worker in workers):
            return ReadinessCheck(name="workers", ok=True)
        failure = next((" One failed." for worker in workers if worker.state == "failed"), "")
        states = f"No worker is ready ({len(workers)} known).{failure}"
        return ReadinessCheck(name="workers", ok=False, message=states)
