"""`shardlab worker`: a worker by itself, on any machine that reaches the database."""

from __future__ import annotations

import logging
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click

from shardlab.errors import InvalidServerOption, WorkerMismatch
from shardlab.server.database.database_errors import first_line
from shardlab.server.database.engine import Database, open_database
from shardlab.server.jobs.worker import Worker
from shardlab.server.jobs.worker_messages import WorkerEvent, WorkerOptions
from shardlab.server.jobs.worker_registry import WorkerRegistry, new_worker_name
from shardlab.server.operations.log_format import LogFormat, configure_logging
from shardlab.server.operations.quotas import ServerLimits
from shardlab.server.release import Release, this_release
from shardlab.server.server_mode import check_confinement

_RELEASE_CHECK_SECONDS = 10.0
_LOG = logging.getLogger("shardlab.server.worker")


@dataclass(frozen=True, kw_only=True)
class StandaloneOptions:
    """How `shardlab worker` runs."""

    database_url: str
    data_folder: Path
    n_slots: int
    drain_seconds: float  # after the first SIGTERM; then the jobs go back to the queue
    limits: ServerLimits
    log_format: LogFormat
    catalogue: str | None = None


def run_standalone_worker(options: StandaloneOptions) -> None:
    """Work until SIGTERM or Ctrl-C.

    Raises before it takes a job: `InvalidServerOption`, `DatabaseUnusable`, `WorkerMismatch`,
    `SandboxLevelUnavailable`. Raises `WorkerMismatch` later, after the end of what runs, if newer
    web processes expect another release.
    """
    if not options.database_url:
        raise InvalidServerOption(
            "The worker has no database.",
            where="--database",
            fix="pass the one that `shardlab serve` has: --database postgresql://USER@HOST/NAME",
        )
    configure_logging(options.log_format)
    check_confinement(options.data_folder)
    database = open_database(options.data_folder, options.database_url)
    try:
        release = this_release(options.catalogue)
        check_release(WorkerRegistry(database), release)
        _run(options, database, release)
    finally:
        database.close()


def check_release(registry: WorkerRegistry, release: Release) -> None:
    """Raise `WorkerMismatch` unless the web processes expect this release."""
    expected = registry.expected_release()
    if expected is None:
        raise WorkerMismatch(
            "No server has used this database yet, so nobody says which release it expects.",
            where="--database",
            fix="start `shardlab serve --accounts --database ...` first.",
        )
    differences = release.list_differences(expected)
    if differences:
        raise WorkerMismatch(
            f"This worker would judge otherwise than the server expects: {'; '.join(differences)}.",
            where=f"shardlab {release.shardlab_version} here, {expected.shardlab_version} on the "
            "server",
            fix="install the server's release of shardlab and of JAX here: "
            f'pip install "shardlab=={expected.shardlab_version}" "jax=={expected.jax_version}"',
        )


def _run(options: StandaloneOptions, database: Database, release: Release) -> None:
    name = new_worker_name()
    worker_options = WorkerOptions(
        name=name,
        data_folder=str(options.data_folder),
        n_slots=options.n_slots,
        minimum_level="A",
        is_local=False,
        catalogue=options.catalogue,
        log_format=options.log_format,
        limits=options.limits.to_json(),
    )
    worker = Worker(worker_options, database, _print_event)
    signals = _Signals(worker, options.drain_seconds)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signals.handle)
    follower = _ReleaseFollower(worker, WorkerRegistry(database), release)
    threading.Thread(target=follower.run, name="release", daemon=True).start()
    click.echo(f"worker {name}: {options.n_slots} slots; starting the sandbox")
    # In a thread: the main thread is for signals, which Python handles nowhere else.
    thread = threading.Thread(target=worker.run, name="worker")
    thread.start()
    while thread.is_alive():
        thread.join(0.5)
    if worker.is_failed:
        raise SystemExit(3)
    if follower.error is not None:
        raise follower.error
    click.echo(f"worker {name}: ended")


def _print_event(event: WorkerEvent) -> None:
    if event.kind == "can_judge":
        click.echo(f"ready, sandbox level {event.text}")
    elif event.kind == "failed":
        click.echo(f"the sandbox cannot be opened: {event.text}", err=True)


class _Signals:
    """The first signal drains the worker; a second one, or a limit, stops it."""

    def __init__(self, worker: Worker, drain_seconds: float) -> None:
        self._worker, self._drain_seconds = worker, drain_seconds
        self._n_signals = 0

    def handle(self, number: int, frame: FrameType | None) -> None:
        self._n_signals += 1
        # In a thread: the main thread may hold the lock that a wake-up needs.
        threading.Thread(target=self._end, args=(self._n_signals,), daemon=True).start()

    def _end(self, n_signals: int) -> None:
        if n_signals == 1:
            os.write(1, b"draining: finishes what runs; a second signal returns it to the queue\n")
            self._worker.drain()
            threading.Event().wait(self._drain_seconds)
        self._worker.stop()


class _ReleaseFollower:
    """Drains the worker once newer web processes expect another release."""

    def __init__(self, worker: Worker, registry: WorkerRegistry, release: Release) -> None:
        self._worker, self._registry, self._release = worker, registry, release
        self.error: WorkerMismatch | None = None

    def run(self) -> None:
        while self.error is None:
            threading.Event().wait(_RELEASE_CHECK_SECONDS)
            try:
                check_release(self._registry, self._release)
            except WorkerMismatch as error:
                self.error = error
                self._worker.drain()
            except Exception as error:  # the database restarts
                _LOG.warning("the expected release is not known: %s", first_line(error))
