"""A launch inside of a cluster that something else started: SLURM, Open MPI, Kubernetes, Ray.

Every process runs this. They exchange the messages of a launch through jax.distributed's key-value
store: each sets its status under its own key, process 0 reads them all, decides, and reports.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from shardlab.cluster.cluster_size import check_cluster_size
from shardlab.cluster.diagnosis import ProcessView, find_failure, find_hang
from shardlab.cluster.launch import LaunchRequest, LaunchResult, report_on
from shardlab.cluster.messages import (
    Arrival,
    KnownCollective,
    KnownCollectives,
    LaunchJob,
    Message,
    ProcessFailure,
    Status,
    decode_message,
    encode_message,
)
from shardlab.cluster.process_worker import run_process
from shardlab.cluster.records import ProcessRecord
from shardlab.errors import LabError, LaunchTimeLimit, NoCluster
from shardlab.execution.worker_client import shorten_paths

_KEYS = "shardlab/"
_STOP_KEY = f"{_KEYS}stop"
_DONE = "done"
# Below the limit of a message of gRPC, 4 MiB.
_CHUNK_CHARACTERS = 2**19
_POLL_SECONDS = 0.5
_SETTLE_SECONDS = 4.0
# A process whose status has not changed for this long has ended, or its host is unreachable.
_SILENT_SECONDS = 30.0


def launch_here(request: LaunchRequest) -> LaunchResult | None:
    """Run the program as one process of this cluster; return the result in process 0."""
    job = _join(request.job)
    where = f"{job.command_line} --on auto"
    with _output_to_stderr():
        store = _Store()
        collector = _Collector(store, request, where)
        store.watch = collector.watch
        run_process(job, store.send)
        if store.failed_to_connect is not None:
            raise store.failed_to_connect.failure.to_error()
        if store.process != 0:
            _wait_for_stop(store)
            return None
        parts = collector.wait()
        store.set(_STOP_KEY, _DONE)
        store.stop()
        _shut_down()
    return report_on(request, parts)


def _join(job: LaunchJob) -> LaunchJob:
    """Return the job with the address of process 0, or without one if JAX detects the cluster."""
    from shardlab._jax.executed_programs import detected_cluster

    settings = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    if job.coordinator is None and all(os.environ.get(name, "") for name in settings):
        address, count, process = (os.environ[name] for name in settings)
        if count.isdecimal() and process.isdecimal():
            job = replace(job, coordinator=address, n_processes=int(count), process=int(process))
    if job.coordinator is not None or detected_cluster() is not None:
        return job
    # Several processes of which none finds the others: each would be a cluster of one.
    check_cluster_size(1, 0)
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        raise NoCluster(
            "This is a pod of Kubernetes, and JAX detects no job in it: that needs the package "
            "kubernetes.",
            where="shardlab launch --on auto",
            fix="install jax[k8s] in the image, or set JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES "
            "and JAX_PROCESS_ID (from JOB_COMPLETION_INDEX) in the template of the job.",
        )
    raise NoCluster(
        "There is no cluster here: neither SLURM, Open MPI nor Kubernetes started this process.",
        where="shardlab launch --on auto",
        fix="start processes on this machine with --on local:4, on others with --on ssh:hosts.txt, "
        "or give --coordinator, --processes and --process-id.",
    )


@contextlib.contextmanager
def _output_to_stderr() -> Iterator[None]:
    """Within this block what the program prints goes to standard error, as in every launch."""
    sys.stdout.flush()
    original = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(original, 1)
        os.close(original)


def _shut_down() -> None:
    import jax

    with contextlib.suppress(Exception):  # another process has left first
        jax.distributed.shutdown()


def _wait_for_stop(store: _Store) -> None:
    while store.get(_STOP_KEY) != _DONE:
        time.sleep(_POLL_SECONDS)
    store.stop()
    _shut_down()


class _Store:
    """The key-value store of jax.distributed, once this process is connected."""

    def __init__(self) -> None:
        self._client: Any = None
        self.process = 0
        self.n_processes = 1
        self.failed_to_connect: ProcessFailure | None = None
        self.watch: Callable[[], None] = lambda: None  # of process 0
        self._watcher: threading.Thread | None = None
        self._stopped = threading.Event()

    def send(self, message: Message) -> None:
        if isinstance(message, Arrival):
            self._connect()
        if self._client is None:
            if isinstance(message, ProcessFailure):
                self.failed_to_connect = message
            return
        text = encode_message(message)
        if isinstance(message, Status):
            self.set(self._key("status"), text)
        elif isinstance(message, Arrival):
            self.set(self._key("arrival"), text)
            watch = self._end_when_stopped if self.process else self.watch
            self._watcher = threading.Thread(target=watch, daemon=True)
            self._watcher.start()
        elif isinstance(message, KnownCollectives):
            if self.process == 0:
                self.set(f"{_KEYS}collectives/{message.program}", text)
        elif isinstance(message, (ProcessRecord, ProcessFailure)):
            chunks = range(0, len(text), _CHUNK_CHARACTERS)
            for number, start in enumerate(chunks):
                self.set(self._key(f"end.{number}"), text[start : start + _CHUNK_CHARACTERS])
            self.set(self._key("end"), str(len(chunks)))

    def stop(self) -> None:
        """Wait for the thread that uses the store; the interpreter must not exit while it does."""
        self._stopped.set()
        if self._watcher is not None:
            self._watcher.join()

    def set(self, key: str, text: str) -> None:
        self._client.key_value_set(key, text, allow_overwrite=True)

    def get(self, key: str) -> str:
        """Return the value of a key; '' if it has none."""
        with contextlib.suppress(Exception):
            return str(self._client.key_value_try_get(key))
        return ""

    def get_end(self, process: int) -> Message | None:
        count = self.get(f"{_KEYS}{process}/end")
        if not count:
            return None
        chunks = (self.get(f"{_KEYS}{process}/end.{number}") for number in range(int(count)))
        return decode_message(shorten_paths("".join(chunks)))

    def get_message(self, process: int, name: str) -> tuple[str, Message | None]:
        text = self.get(f"{_KEYS}{process}/{name}")
        return text, decode_message(shorten_paths(text)) if text else None

    def collectives(self) -> dict[str, tuple[KnownCollective, ...]]:
        known = {}
        with contextlib.suppress(Exception):
            for _, text in self._client.key_value_dir_get(f"{_KEYS}collectives/"):
                message = decode_message(shorten_paths(text))
                if isinstance(message, KnownCollectives):
                    known[message.program] = message.collectives
        return known

    def _key(self, name: str) -> str:
        return f"{_KEYS}{self.process}/{name}"

    def _connect(self) -> None:
        from shardlab._jax.executed_programs import coordination_client, process_position

        self.process, self.n_processes = process_position()
        self._client = coordination_client()

    def _end_when_stopped(self) -> None:
        """In every process but 0: end when process 0 has found a hang or a failure."""
        while not self._stopped.wait(_POLL_SECONDS):
            if self.get(_STOP_KEY) not in ("", _DONE):
                os._exit(1)


@dataclass(kw_only=True)
class _Peer:
    """What process 0 knows of one process."""

    number: int
    host: str = ""
    pid: int | None = None
    status: Status = field(default_factory=lambda: Status(phase="starting"))
    status_text: str = ""
    changed_at: float = field(default_factory=time.monotonic)
    record: ProcessRecord | None = None
    failure: ProcessFailure | None = None
    ended_order: int = 0

    def view(self, now: float, silent_seconds: float) -> ProcessView:
        silence = now - self.changed_at
        is_silent = silence > silent_seconds and self.record is None and self.failure is None
        return ProcessView(
            process=self.number,
            host=self.host,
            pid=self.pid,
            status=self.status,
            idle_seconds=self.status.idle_seconds + silence,
            is_done=self.record is not None,
            failure=self.failure,
            ended_by=f"an unknown cause (it sent no status for {silence:.0f} s)"
            if is_silent
            else "",
            ended_order=self.ended_order,
        )


class _Collector:
    """Process 0: waits for the records of all processes, or ends the launch with a diagnosis.

    In a thread, because the main thread of process 0 may be the one that blocks.
    """

    def __init__(self, store: _Store, request: LaunchRequest, where: str) -> None:
        self._store, self._limits, self._where = store, request.limits, where
        self._peers: list[_Peer] = []
        self._n_failed = 0
        self._records: queue.SimpleQueue[list[ProcessRecord]] = queue.SimpleQueue()

    def wait(self) -> list[ProcessRecord]:
        """Return the records of all processes; a failure ends the process instead."""
        return self._records.get()

    def watch(self) -> None:
        self._peers = [_Peer(number=number) for number in range(self._store.n_processes)]
        try:
            self._records.put(self._collect())
        except Exception:
            # The main thread may be blocked in a collective, and would never see it.
            traceback.print_exc()
            os._exit(1)

    def _collect(self) -> list[ProcessRecord]:
        start, settle_until = time.monotonic(), 0.0
        while True:
            for peer in self._peers:
                self._read(peer)
            now = time.monotonic()
            records = [peer.record for peer in self._peers]
            if all(record is not None for record in records):
                return [record for record in records if record is not None]
            views = [peer.view(now, _SILENT_SECONDS) for peer in self._peers]
            if self._n_failed or any(view.ended_by for view in views):
                settle_until = settle_until or now + _SETTLE_SECONDS
                if now >= settle_until:
                    # One that was killed is silent; it would have sent a failure otherwise.
                    views = [peer.view(now, _SETTLE_SECONDS - 1) for peer in self._peers]
                    failure = find_failure(views, self._store.collectives(), self._where)
                    assert failure is not None
                    self._stop(failure.error, failure.traceback)
            else:
                limit = self._limits.stall_seconds
                hang = find_hang(views, self._store.collectives(), limit, self._where)
                if hang is not None:
                    self._stop(hang)
            if self._limits.total_seconds and now - start > self._limits.total_seconds:
                self._stop(self._time_limit(views))
            time.sleep(_POLL_SECONDS)

    def _read(self, peer: _Peer) -> None:
        if peer.record is not None or peer.failure is not None:
            return
        text, status = self._store.get_message(peer.number, "status")
        if text != peer.status_text and isinstance(status, Status):
            peer.status, peer.status_text, peer.changed_at = status, text, time.monotonic()
        _, arrival = self._store.get_message(peer.number, "arrival")
        if isinstance(arrival, Arrival):
            peer.host, peer.pid = arrival.host, arrival.pid
        end = self._store.get_end(peer.number)
        if isinstance(end, ProcessRecord):
            peer.record = end
        elif isinstance(end, ProcessFailure):
            self._n_failed += 1
            peer.failure, peer.status, peer.ended_order = end, end.status, self._n_failed

    def _time_limit(self, views: list[ProcessView]) -> LaunchTimeLimit:
        positions = "; ".join(f"{view.name} {view.position}" for view in views)
        return LaunchTimeLimit(
            f"The launch was still running after {self._limits.total_seconds:g} s and was ended: "
            f"{positions}.",
            where=self._where,
            fix="look for a loop that does not end, or allow more time (--time-limit 600).",
        )

    def _stop(self, error: LabError, program_traceback: str = "") -> NoReturn:
        """Print the diagnosis and end all processes; the store goes with this one."""
        if program_traceback:
            sys.stderr.write(program_traceback + "\n")
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()
        self._store.set(_STOP_KEY, error.code)
        time.sleep(2 * _POLL_SECONDS)
        # Not by an exception: the main thread of another process may be blocked in a collective,
        # and an orderly shutdown would wait for it.
        os._exit(error.exit_code)
