"""Jobs as the pages and the API use them: the queue, its workers, and news about changes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator

from shardlab.server.database.engine import Database
from shardlab.server.jobs.job_changes import JOB_CHANNEL, ChangeListener
from shardlab.server.jobs.queue import LAB_KINDS, Job, JobKind, JsonObject, Reservation
from shardlab.server.jobs.sql_queue import SqlJobQueue
from shardlab.server.jobs.worker_messages import WorkerOptions
from shardlab.server.jobs.worker_registry import RegisteredWorker, WorkerRegistry
from shardlab.server.jobs.worker_supervisor import WorkerStatus, WorkerSupervisor
from shardlab.server.release import this_release
from shardlab.server.settings import ServerSettings

# A job changes without news if a worker of another server on the same database runs it, and a
# position whenever another job starts.
_QUEUED_POLL_SECONDS = 1.0
_RUNNING_POLL_SECONDS = 2.0
_WORKERS_SECONDS = 2.0  # how old the list of workers on other machines may be
_SLOTS_PER_WORKER = 2  # a long recording does not keep a short one waiting


class JobService:
    """One for each application. Blocking methods are for threads, as FastAPI's plain functions."""

    def __init__(self, database: Database, settings: ServerSettings) -> None:
        self.queue = SqlJobQueue(database, settings.limits.queue)
        options = WorkerOptions(
            name="",
            data_folder=str(settings.data_folder),
            n_slots=_SLOTS_PER_WORKER,
            minimum_level=settings.minimum_level or ("C" if settings.is_local else "A"),
            is_local=settings.is_local,
            catalogue=settings.catalogue,
            log_format=settings.log_format,
            limits=settings.limits.to_json(),
        )
        self.supervisors = tuple(
            WorkerSupervisor(options, self.queue, self._notify, database_url=settings.database_url)
            for _ in range(settings.n_workers)
        )
        self.database = database
        self.registry = WorkerRegistry(database)
        self._catalogue = settings.catalogue
        self._listener = (
            ChangeListener(database.engine.url, (JOB_CHANNEL,), self._on_news)
            if database.is_postgresql
            else None
        )
        self._other_workers: tuple[float, tuple[RegisteredWorker, ...]] = (0.0, ())
        # Of those who store a submission: each sees what the one before has stored.
        self.submission_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._is_ending = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the workers; they get ready in the background."""
        self._loop = loop
        if self._listener is not None:
            self.registry.expect(this_release(self._catalogue))
            self._listener.start()
        for supervisor in self.supervisors:
            supervisor.start()

    def stop(self) -> None:
        """End the workers. What they ran goes back to the queue."""
        self._loop = None
        if self._listener is not None:
            self._listener.stop()
        for supervisor in self.supervisors:
            supervisor.stop()

    @property
    def worker_status(self) -> tuple[WorkerStatus, ...]:
        return tuple(supervisor.status for supervisor in self.supervisors)

    @property
    def is_starting(self) -> bool:
        """Return whether no worker is ready to take a job."""
        if any(status.state == "ready" for status in self.worker_status):
            return False
        return not any(worker.is_ready for worker in self.list_registered_workers())

    def is_waiting_for_start(self, job: Job) -> bool:
        """Return whether a job waits because no worker is ready for its kind yet."""
        if job.state != "queued":
            return False
        if job.kind in LAB_KINDS:
            return self.is_starting
        if any(status.can_judge for status in self.worker_status):
            return False
        return not any(
            worker.is_ready and worker.can_judge for worker in self.list_registered_workers()
        )

    def list_registered_workers(self) -> tuple[RegisteredWorker, ...]:
        """Return the workers of all machines, as they were a moment ago."""
        if self._listener is None:  # all workers of an embedded database are our own
            return ()
        now = time.monotonic()
        if now >= self._other_workers[0]:
            workers = self.registry.list_workers()
            self._other_workers = (now + _WORKERS_SECONDS, workers)
        return self._other_workers[1]

    def submit(
        self,
        person: int,
        kind: JobKind,
        payload: JsonObject,
        *,
        key: str | None = None,
        reservation: Reservation | None = None,
    ) -> Job:
        """Store a job and wake the workers. Raises `QueueFull`."""
        job = self.queue.enqueue(person, kind, payload, key=key, reservation=reservation)
        self.wake_workers()
        return job

    def wake_workers(self) -> None:
        """Tell the workers about a job that was added in another transaction."""
        for supervisor in self.supervisors:
            supervisor.wake()

    def cancel(self, job_id: str) -> Job | None:
        """Cancel a job; one that runs ends within moments."""
        job = self.queue.cancel(job_id)
        self.wake_workers()
        self._notify(job_id)
        return job

    async def watch(self, job_id: str) -> AsyncIterator[Job]:
        """Yield a job now and whenever it may have changed, until it has ended."""
        changed = asyncio.Event()
        self._changed[job_id].add(changed)
        try:
            while True:
                changed.clear()
                job = await asyncio.to_thread(self.queue.find, job_id)
                if job is None:
                    return
                yield job
                if job.has_ended or self._is_ending:
                    return
                is_queued = job.state == "queued"
                patience = _QUEUED_POLL_SECONDS if is_queued else _RUNNING_POLL_SECONDS
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), patience)
        finally:
            self._changed[job_id].discard(changed)
            if not self._changed[job_id]:
                del self._changed[job_id]

    def end_watches(self) -> None:
        """End every `watch`, because the server ends; may be called in a signal handler."""
        self._is_ending = True
        for job_id in list(self._changed):
            self._notify(job_id)

    def _on_news(self, channel: str, job_id: str) -> None:
        """Pass on what another process has changed; without an id, anything may have changed."""
        for changed_id in [job_id] if job_id else list(self._changed):
            self._notify(changed_id)

    def _notify(self, job_id: str) -> None:
        """Wake those who watch a job; called in the threads of the supervisors."""
        loop = self._loop
        if loop is not None and job_id:
            with contextlib.suppress(RuntimeError):  # the loop was closed just now
                loop.call_soon_threadsafe(self._set_changed, job_id)

    def _set_changed(self, job_id: str) -> None:
        for changed in self._changed.get(job_id, ()):
            changed.set()
