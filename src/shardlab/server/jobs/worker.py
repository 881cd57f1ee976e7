"""A worker process: claims jobs, runs them in the sandbox, stores what came of them.

    python -m shardlab.server.jobs.worker OPTIONS

is a worker of a web process (`worker_supervisor.py`); `shardlab worker` runs one by itself, on any
machine (`standalone_worker.py`). It holds no state that matters: killed at any moment, its jobs are
claimed again by another worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from shardlab.course.cancellable_pool import CancellablePool
from shardlab.errors import LabError
from shardlab.judge.worker_pool import open_reference_pool, open_worker_pool
from shardlab.sandbox.process import ProcessEnded, SandboxPool
from shardlab.server.confined.lab_pool import StagedPool, open_lab_pool
from shardlab.server.database.database_errors import first_line
from shardlab.server.database.engine import Database, open_database
from shardlab.server.jobs.job_changes import JOB_CHANNEL, QUEUE_CHANNEL, ChangeListener
from shardlab.server.jobs.job_dispatch import LEASE_SECONDS
from shardlab.server.jobs.job_kinds import JobContext, run_job
from shardlab.server.jobs.queue import (
    ClaimedJob,
    JobError,
    JobOutcome,
    JsonObject,
    LeaseLost,
    slot_kinds,
)
from shardlab.server.jobs.sql_queue import SqlJobQueue
from shardlab.server.jobs.worker_messages import DATABASE_VARIABLE, WorkerEvent, WorkerOptions
from shardlab.server.jobs.worker_registry import (
    HEARTBEAT_SECONDS,
    WorkerRegistry,
    WorkerState,
)
from shardlab.server.operations.job_log import log_job
from shardlab.server.operations.log_format import configure_logging
from shardlab.server.operations.quotas import ServerLimits
from shardlab.server.release import this_release

_POLL_SECONDS = 1.0  # for jobs of another server on the same database; our own server wakes us
_RENEW_SECONDS = LEASE_SECONDS / 5
_CLEANING_SECONDS = 3600.0
_SUSPENDED_SECONDS = 8.0  # no thread waits as long for its second on a busy machine
_STOP_SECONDS = 3.0  # for an orderly end
_FINISH_ATTEMPTS = 60  # while the database is away; the lease may end meanwhile
_LOG = logging.getLogger("shardlab.server.worker")
_INTERNAL_ERROR = JobError(
    kind="internal",
    message="Something failed in shardlab itself. It is in the server's log.",
    fix="run it again.",
)
_SANDBOX_ERROR = replace(_INTERNAL_ERROR, kind="sandbox")


class JobCancelled(Exception):
    """The job was cancelled, or another worker has it now."""


class Worker:
    """Runs up to `n_slots` jobs at a time, each in a thread."""

    def __init__(
        self, options: WorkerOptions, database: Database, report: Callable[[WorkerEvent], None]
    ) -> None:
        self._options = options
        self._database = database
        self._queue = SqlJobQueue(database, ServerLimits.from_json(options.limits).queue)
        self._registry = WorkerRegistry(database)
        self._send = report
        self._lock = threading.Lock()  # of the running jobs
        self._running: dict[tuple[str, int], tuple[ClaimedJob, CancellablePool]] = {}
        self._suspended: set[tuple[str, int]] = (
            set()
        )  # attempts that a stop of this process spoiled
        self._wakeup = threading.Condition()
        self._n_wakeups = 0  # so that one that comes before the wait for it is not missed
        self._is_draining = False  # takes nothing new
        self._is_stopping = False  # gives back what it runs
        self._is_failed = False  # its sandbox cannot be opened
        self._has_ended = threading.Event()
        self._has_news = threading.Event()  # the next heartbeat is due at once
        self._pool: StagedPool | None = None

    @property
    def is_failed(self) -> bool:
        """Return whether it ended because its sandbox could not be opened."""
        return self._is_failed

    def run(self) -> None:
        """Work until `stop`, or until `drain` and the end of what runs."""
        release = this_release(self._options.catalogue)
        self._registry.register(self._options.name, release, n_slots=self._options.n_slots)
        beats = threading.Thread(target=self._beat, daemon=True)
        beats.start()
        threading.Thread(target=self._watch_clock, daemon=True).start()
        listener = self._open_listener()
        try:
            self._pool = self._open_pool()
            self._has_news.set()
            if self._pool is not None:
                self._work(self._pool)
        finally:
            self._is_stopping = True
            self._has_ended.set()
            self._has_news.set()
            beats.join()
            self._cancel_running()
            # Here, and not only by the ends of the leases: the next start finds its jobs at once.
            self.release_jobs()
            if listener is not None:
                listener.stop()
            if self._pool is not None:
                self._pool.close()

    def drain(self) -> None:
        """Take nothing new; end after what runs."""
        self._is_draining = True
        self._has_news.set()
        self.wake()

    def stop(self) -> None:
        """End now. What runs goes back to the queue."""
        self._is_stopping = True
        self._cancel_running()
        self.wake()

    def release_jobs(self) -> None:
        """Give the jobs back, and say that this worker has ended; a dead database is no error."""
        with contextlib.suppress(Exception):
            self._queue.release(self._options.name, has_crashed=False)
        with contextlib.suppress(Exception):
            self._store_state("ended")

    def _open_listener(self) -> ChangeListener | None:
        if not self._database.is_postgresql:
            return None
        url = self._database.engine.url
        listener = ChangeListener(url, (QUEUE_CHANNEL, JOB_CHANNEL), self._on_news)
        listener.start()
        return listener

    def _on_news(self, channel: str, payload: str) -> None:
        if channel == JOB_CHANNEL:
            with self._lock:
                is_mine = any(claim.id == payload for claim, _ in self._running.values())
            if not is_mine:  # every progress of every job is announced
                return
        self.wake()

    def _beat(self) -> None:
        """Store every few seconds that this worker is alive; a hang of a job does not stop it."""
        while not self._is_stopping:
            pool = self._pool
            state: WorkerState = "starting" if pool is None else "ready"
            try:
                self._store_state("draining" if self._is_draining else state)
            except Exception as error:  # the database restarts
                _LOG.warning("the heartbeat was not stored: %s", first_line(error))
            self._has_news.wait(HEARTBEAT_SECONDS)
            self._has_news.clear()

    def _watch_clock(self) -> None:
        """Return what runs to the queue if this process stood still, as after SIGSTOP.

        The sandbox may have gone on meanwhile, so its time limits measured something else, and a
        verdict about time could be wrong.
        """
        before = time.monotonic()
        while not self._is_stopping:
            self._has_ended.wait(1.0)
            now = time.monotonic()
            if now - before > _SUSPENDED_SECONDS:
                _LOG.warning("this process stood still for %.0f s", now - before)
                with self._lock:
                    self._suspended.update(self._running)
                self._cancel_running()
            before = now

    def _store_state(self, state: WorkerState) -> None:
        pool = self._pool
        self._registry.beat(
            self._options.name,
            state=state,
            level="" if pool is None else pool.level,
            can_judge=pool is not None and pool.can_judge,
        )

    def _open_pool(self) -> StagedPool | None:
        try:
            lab = open_lab_pool(self._hidden_paths(), at_least=self._options.minimum_level)
        except LabError as error:
            self._fail(error)
            return None
        pool = StagedPool(
            lab,
            lambda: open_reference_pool(self._hidden_paths(), at_least=self._options.minimum_level),
        )
        self._send(WorkerEvent(kind="ready", text=lab.level))
        threading.Thread(target=self._open_judge, args=(pool,), daemon=True).start()
        return pool

    def _open_judge(self, pool: StagedPool) -> None:
        hidden = self._hidden_paths()
        try:
            pool.add_judge(open_worker_pool(None, hidden, at_least=self._options.minimum_level))
        except LabError as error:
            self._fail(error)  # the web process starts another worker, later and later
            self.stop()
        else:
            self._send(WorkerEvent(kind="can_judge", text=pool.level))
        self._has_news.set()
        self.wake()

    def _hidden_paths(self) -> list[str]:
        # The store has the seeds of the hidden cases, a catalogue the reference solutions.
        catalogue = self._options.catalogue
        paths = [self._options.data_folder, *([catalogue] if catalogue else [])]
        socket_folder = self._database.engine.url.host or ""
        return [*paths, socket_folder] if socket_folder.startswith("/") else paths

    def _fail(self, error: LabError) -> None:
        self._is_failed = True
        self._send(WorkerEvent(kind="failed", text=f"{error.what} {error.where or ''}".strip()))

    def _work(self, pool: StagedPool) -> None:
        threads = [
            threading.Thread(target=self._run_slot, args=(pool, number), name=f"slot {number}")
            for number in range(self._options.n_slots)
        ]
        for thread in threads:
            thread.start()
        next_cleaning = 0.0
        while not self._is_stopping and any(thread.is_alive() for thread in threads):
            n_wakeups = self._n_wakeups
            if time.monotonic() >= next_cleaning:
                self._delete_old_rows()
                next_cleaning = time.monotonic() + _CLEANING_SECONDS
            self._renew_leases()
            self._wait_for_wakeup(n_wakeups, _RENEW_SECONDS)
        self._cancel_running()
        for thread in threads:
            thread.join()

    def _delete_old_rows(self) -> None:
        try:
            self._queue.delete_old_rows()
        except Exception as error:  # the database restarts
            _LOG.warning("old rows were not deleted: %s", first_line(error))

    # ------------------------------------------------------------------------------- one job

    def _run_slot(self, pool: StagedPool, number: int) -> None:
        while not self._is_stopping and not self._is_draining:
            n_wakeups = self._n_wakeups
            try:
                kinds = slot_kinds(number, can_judge=pool.can_judge)
                claim = self._queue.claim(self._options.name, kinds)
                if claim is not None:
                    self._run_claim(claim, pool)
                    continue
            except DBAPIError as error:  # the database restarts; the lease ends if it takes long
                _LOG.warning("a job could not be claimed or finished: %s", first_line(error))
                time.sleep(_POLL_SECONDS)
            except Exception:  # such as a full disk: the lease ends, and the job is tried again
                _LOG.exception("a job could not be claimed or finished")
                time.sleep(_POLL_SECONDS)
            self._wait_for_wakeup(n_wakeups, _POLL_SECONDS)
        self.wake()  # the last slot to end ends the worker

    def _run_claim(self, claim: ClaimedJob, pool: SandboxPool) -> None:
        job_pool = CancellablePool(pool, JobCancelled)
        with self._lock:
            self._running[claim.id, claim.attempt] = (claim, job_pool)
        with log_job(claim) as job_log:
            self._send_changed(claim)
            try:
                outcome = self._run_job(claim, job_pool)
            finally:
                with self._lock:
                    del self._running[claim.id, claim.attempt]
            job_log.outcome = outcome
            if outcome is not None:
                self._finish(claim, outcome)
                self._send_changed(claim)

    def _finish(self, claim: ClaimedJob, outcome: JobOutcome) -> None:
        """Store an outcome, also if the database restarts just now."""
        for _ in range(_FINISH_ATTEMPTS):
            try:
                self._queue.finish(claim, outcome)
                return
            except DBAPIError as error:
                _LOG.warning("an outcome is stored later: %s", first_line(error))
                time.sleep(_POLL_SECONDS)
        self._queue.finish(claim, outcome)

    def _run_job(self, claim: ClaimedJob, pool: CancellablePool) -> JobOutcome | None:
        """Return the outcome; None if the job goes back to the queue because the worker stops."""

        def report_progress(progress: JsonObject) -> None:
            try:
                is_valid = self._queue.report_progress(claim, progress)
            except DBAPIError as error:  # the next report has all of this one
                _LOG.warning("progress was not stored: %s", first_line(error))
                is_valid = True
            if not is_valid:
                raise JobCancelled
            self._send_changed(claim)

        context = JobContext(
            pool=pool,
            report_progress=report_progress,
            database=self._database,
            data_folder=Path(self._options.data_folder),
            is_local=self._options.is_local,
            catalogue=self._options.catalogue,
        )
        try:
            outcome = run_job(claim, context)
        except (JobCancelled, LeaseLost):
            outcome = JobOutcome(state="cancelled")
        except DBAPIError as error:  # the job is not at fault: it is run again
            _LOG.warning("job %s (%s) is run again: %s", claim.id, claim.kind, first_line(error))
            self._give_back(claim, is_lost=True)
            return None
        except ProcessEnded as ended:
            outcome = JobOutcome(state="failed", error=_SANDBOX_ERROR)
            _LOG.error("no confined process for a job: %s", ended)
        except Exception:
            outcome = JobOutcome(state="failed", error=_INTERNAL_ERROR)
            _LOG.exception("job %s (%s) failed", claim.id, claim.kind)
        # Whatever a job made of its processes being ended: it was cancelled.
        if pool.is_cancelled and (claim.id, claim.attempt) in self._suspended:
            self._give_back(claim, is_lost=False)
            return None
        if pool.is_cancelled:
            return None if self._is_stopping else JobOutcome(state="cancelled")
        return outcome

    def _give_back(self, claim: ClaimedJob, *, is_lost: bool) -> None:
        """Return one job to the queue; if the database is away, the end of the lease does it."""
        with contextlib.suppress(DBAPIError):
            self._queue.give_back(claim, is_lost=is_lost)

    def _renew_leases(self) -> None:
        with self._lock:
            running = dict(self._running)
        if not running:
            return
        try:
            must_end = self._queue.renew([claim for claim, _ in running.values()])
        except DBAPIError as error:  # the lease lasts for several renewals
            _LOG.warning("leases could not be renewed: %s", first_line(error))
            return
        except Exception:
            _LOG.exception("leases could not be renewed")
            return
        for claim in must_end:
            running[claim.id, claim.attempt][1].cancel()

    def _cancel_running(self) -> None:
        with self._lock:
            pools = [pool for _, pool in self._running.values()]
        for pool in pools:
            pool.cancel()

    # ----------------------------------------------------------------------------- wake-ups

    def wake(self) -> None:
        """Look at the queue at once."""
        with self._wakeup:
            self._n_wakeups += 1
            self._wakeup.notify_all()

    def _wait_for_wakeup(self, n_before: int, seconds: float) -> None:
        """Wait until there was a wake-up since `n_before` of them."""
        with self._wakeup:
            self._wakeup.wait_for(
                lambda: self._n_wakeups != n_before or self._is_stopping, timeout=seconds
            )

    def _send_changed(self, claim: ClaimedJob) -> None:
        self._send(WorkerEvent(kind="changed", text=claim.id))


def _follow_web_process(worker: Worker, requests_fd: int) -> None:
    """Wake the worker for every byte; stop it at the end of the pipe."""
    while os.read(requests_fd, 4096):
        worker.wake()
    worker.stop()
    # A fork server that is still starting would delay the end by seconds. The processes of the
    # sandbox see that this one is gone, and end too.
    time.sleep(_STOP_SECONDS)
    worker.release_jobs()
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Run a worker until its standard input is closed."""
    options = WorkerOptions.from_argument(arguments[0])
    # Ctrl-C in a terminal reaches every process of the group. The web process decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging(options.log_format)
    # From the environment, because everybody on the machine can read a command line.
    url = os.environ.pop(DATABASE_VARIABLE, "")
    database = open_database(Path(options.data_folder), url)
    # A print of ours or of a library must not become an event.
    events_fd = os.dup(1)
    os.dup2(2, 1)

    def report(event: WorkerEvent) -> None:
        with contextlib.suppress(OSError):  # the web process has ended; so will this one
            os.write(events_fd, event.to_line())

    worker = Worker(options, database, report)
    threading.Thread(target=_follow_web_process, args=(worker, 0), daemon=True).start()
    try:
        worker.run()
    finally:
        database.close()
    if worker.is_failed:
        raise SystemExit(3)


if __name__ == "__main__":
    main(sys.argv[1:])
