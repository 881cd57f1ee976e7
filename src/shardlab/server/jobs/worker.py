"""A worker process: claims jobs, runs them in the sandbox, stores what came of them.

    python -m shardlab.server.jobs.worker OPTIONS

It holds no state that matters: killed at any moment, its jobs are claimed again by another worker.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from shardlab.course.cancellable_pool import CancellablePool
from shardlab.errors import LabError
from shardlab.judge.worker_pool import open_reference_pool, open_worker_pool
from shardlab.sandbox.process import ProcessEnded, SandboxPool
from shardlab.server.confined.lab_pool import StagedPool, open_lab_pool
from shardlab.server.database.engine import Database, open_database
from shardlab.server.jobs.job_kinds import JobContext, run_job
from shardlab.server.jobs.queue import ClaimedJob, JobError, JobOutcome, JsonObject, slot_kinds
from shardlab.server.jobs.sql_queue import LEASE_SECONDS, SqlJobQueue
from shardlab.server.jobs.worker_messages import WorkerEvent, WorkerOptions
from shardlab.server.operations.job_log import log_job
from shardlab.server.operations.log_format import configure_logging
from shardlab.server.operations.quotas import ServerLimits

_POLL_SECONDS = 1.0  # for jobs of another server on the same database; our own server wakes us
_RENEW_SECONDS = LEASE_SECONDS / 5
_CLEANING_SECONDS = 3600.0
_STOP_SECONDS = 3.0  # for an orderly end
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

    def __init__(self, options: WorkerOptions, database: Database, events_fd: int) -> None:
        self._options = options
        self._database = database
        limits = ServerLimits.from_json(options.limits)
        self._queue = SqlJobQueue(database, limits.queue)
        self._events_fd = events_fd
        self._lock = threading.Lock()  # of the running jobs
        self._running: dict[tuple[str, int], tuple[ClaimedJob, CancellablePool]] = {}
        self._wakeup = threading.Condition()
        self._n_wakeups = 0  # so that one that comes before the wait for it is not missed
        self._is_stopping = False

    def run(self, requests_fd: int) -> None:
        """Work until the web process closes the pipe, or ends."""
        pool: StagedPool | None = None
        threading.Thread(target=self._listen, args=(requests_fd,), daemon=True).start()
        try:
            pool = self._open_pool()
            self._work(pool)
        finally:
            self._cancel_running()
            # Here, and not only by the ends of the leases: the next start finds its jobs at once.
            self._queue.release(self._options.name, has_crashed=False)
            if pool is not None:
                pool.close()

    def _open_pool(self) -> StagedPool:
        try:
            lab = open_lab_pool(self._hidden_paths(), at_least=self._options.minimum_level)
        except LabError as error:
            self._send_failed(error)
            raise SystemExit(3) from None
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
            self._send_failed(error)
            self._is_stopping = True  # the web process starts another worker, later and later
        else:
            self._send(WorkerEvent(kind="can_judge", text=pool.level))
        self._wake()

    def _hidden_paths(self) -> list[str]:
        # The store has the seeds of the hidden cases, a catalogue the reference solutions.
        catalogue = self._options.catalogue
        return [self._options.data_folder, *([catalogue] if catalogue else [])]

    def _send_failed(self, error: LabError) -> None:
        self._send(WorkerEvent(kind="failed", text=f"{error.what} {error.where or ''}".strip()))

    def _work(self, pool: StagedPool) -> None:
        threads = [
            threading.Thread(target=self._run_slot, args=(pool, number), name=f"slot {number}")
            for number in range(self._options.n_slots)
        ]
        for thread in threads:
            thread.start()
        next_cleaning = 0.0
        while not self._is_stopping:
            n_wakeups = self._n_wakeups
            if time.monotonic() >= next_cleaning:
                self._queue.delete_old_rows()
                next_cleaning = time.monotonic() + _CLEANING_SECONDS
            self._renew_leases()
            self._wait_for_wakeup(n_wakeups, _RENEW_SECONDS)
        self._cancel_running()
        for thread in threads:
            thread.join()

    # ------------------------------------------------------------------------------- one job

    def _run_slot(self, pool: StagedPool, number: int) -> None:
        while not self._is_stopping:
            n_wakeups = self._n_wakeups
            try:
                kinds = slot_kinds(number, can_judge=pool.can_judge)
                claim = self._queue.claim(self._options.name, kinds)
                if claim is not None:
                    self._run_claim(claim, pool)
                    continue
            except Exception:  # such as a full disk: the lease ends, and the job is tried again
                _LOG.exception("a job could not be claimed or finished")
                time.sleep(_POLL_SECONDS)
            self._wait_for_wakeup(n_wakeups, _POLL_SECONDS)

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
                self._queue.finish(claim, outcome)
                self._send_changed(claim)

    def _run_job(self, claim: ClaimedJob, pool: CancellablePool) -> JobOutcome | None:
        """Return the outcome; None if the job goes back to the queue because the worker stops."""

        def report_progress(progress: JsonObject) -> None:
            if not self._queue.report_progress(claim, progress):
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
        except JobCancelled:
            outcome = JobOutcome(state="cancelled")
        except ProcessEnded as ended:
            outcome = JobOutcome(state="failed", error=_SANDBOX_ERROR)
            _LOG.error("no confined process for a job: %s", ended)
        except Exception:
            outcome = JobOutcome(state="failed", error=_INTERNAL_ERROR)
            _LOG.exception("job %s (%s) failed", claim.id, claim.kind)
        # Whatever a job made of its processes being ended: it was cancelled.
        if pool.is_cancelled:
            return None if self._is_stopping else JobOutcome(state="cancelled")
        return outcome

    def _renew_leases(self) -> None:
        with self._lock:
            running = dict(self._running)
        if not running:
            return
        try:
            must_end = self._queue.renew([claim for claim, _ in running.values()])
        except Exception:  # the lease lasts for several renewals
            _LOG.exception("leases could not be renewed")
            return
        for claim in must_end:
            running[claim.id, claim.attempt][1].cancel()

    def _cancel_running(self) -> None:
        with self._lock:
            pools = [pool for _, pool in self._running.values()]
        for pool in pools:
            pool.cancel()

    # ------------------------------------------------------------------------ the web process

    def _listen(self, requests_fd: int) -> None:
        """Wake the other threads for every byte; stop at the end of the pipe."""
        while os.read(requests_fd, 4096):
            self._wake()
        self._is_stopping = True
        self._cancel_running()
        self._wake()
        # A fork server that is still starting would delay the end by seconds. The processes of the
        # sandbox see that this one is gone, and end too.
        time.sleep(_STOP_SECONDS)
        with contextlib.suppress(Exception):
            self._queue.release(self._options.name, has_crashed=False)
        os._exit(0)

    def _wake(self) -> None:
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

    def _send(self, event: WorkerEvent) -> None:
        with contextlib.suppress(OSError):  # the web process has ended; so will this one
            os.write(self._events_fd, event.to_line())


def main(arguments: list[str]) -> None:
    """Run a worker until its standard input is closed."""
    options = WorkerOptions.from_argument(arguments[0])
    # Ctrl-C in a terminal reaches every process of the group. The web process decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    configure_logging(options.log_format)
    database = open_database(Path(options.data_folder))
    # A print of ours or of a library must not become an event.
    events_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        Worker(options, database, events_fd).run(0)
    finally:
        database.close()


if __name__ == "__main__":
    main(sys.argv[1:])
