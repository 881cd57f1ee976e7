"""The metrics in Prometheus' text format, made by its own client library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from shardlab import __version__
from shardlab.server.operations.instruments import Counter, Histogram
from shardlab.server.operations.metrics import ServerMetrics
from shardlab.server.operations.queue_figures import KindFigures, WorkerView
from shardlab.server.operations.readiness import ReadinessCheck
from shardlab.server.operations.storage import StorageFigures

_WORKER_STATES = ("starting", "ready", "failed", "draining", "silent")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What is true at the moment of a scrape."""

    queue: tuple[KindFigures, ...]
    workers: tuple[WorkerView, ...]
    checks: tuple[ReadinessCheck, ...]
    storage: StorageFigures
    n_streams: int
    n_worker_restarts: int
    refusals: Counter | None  # by limit; local mode has no limits


def write_metrics(metrics: ServerMetrics, snapshot: Snapshot, accept: str) -> tuple[bytes, str]:
    """Return the text of all metrics, and its content type."""
    registry = CollectorRegistry()
    registry.register(_Families([*_counted(metrics), *_present(snapshot)]))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Families(Collector):
    """Metrics that are complete already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def _counter(name: str, text: str, labels: tuple[str, ...], counter: Counter) -> Metric:
    family = CounterMetricFamily(f"shardlab_{name}", text, labels=labels)
    for values, count in sorted(counter.values().items()):
        family.add_metric(values, count)
    return family


def _histogram(name: str, text: str, labels: tuple[str, ...], histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(f"shardlab_{name}", text, labels=labels)
    for values, entry in sorted(histogram.values().items()):
        buckets, n_values = [], 0
        for bound, count in zip([*map(str, histogram.bounds), "+Inf"], entry.counts, strict=True):
            n_values += count
            buckets.append((bound, n_values))
        family.add_metric(values, buckets, entry.total)
    return family


def _gauge(
    name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]
) -> Metric:
    family = GaugeMetricFamily(f"shardlab_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _counted(metrics: ServerMetrics) -> Iterator[Metric]:
    """Yield what this process has counted."""
    yield _counter(
        "http_requests",
        "Requests to this process.",
        ("method", "route", "status"),
        metrics.requests,
    )
    yield _histogram(
        "http_request_seconds",
        "Time to the first byte of a response.",
        ("route",),
        metrics.request_seconds,
    )
    yield _counter(
        "sign_in_failures", "Sign-ins that were refused.", ("method",), metrics.sign_in_failures
    )
    yield _histogram(
        "database_seconds",
        "Time of a statement to the database.",
        ("statement",),
        metrics.database_seconds,
    )
    yield _counter(
        "jobs_finished",
        "Jobs that have ended, of all processes: use max, not sum.",
        ("kind", "outcome"),
        metrics.jobs_finished,
    )
    yield _histogram(
        "judge_seconds",
        "Time to judge a submission, of all processes: use max, not sum.",
        ("problem",),
        metrics.judge_seconds,
    )
    yield _histogram(
        "job_wait_seconds",
        "Time in the queue, of all processes: use max, not sum.",
        ("kind",),
        metrics.job_wait_seconds,
    )


def _present(snapshot: Snapshot) -> Iterator[Metric]:
    """Yield what is so now."""
    yield _gauge("info", "The release.", ("version",), [((__version__,), 1)])
    queue = snapshot.queue
    yield _gauge(
        "jobs_waiting",
        "Jobs in the queue.",
        ("kind",),
        [((row.kind,), row.n_waiting) for row in queue],
    )
    yield _gauge(
        "jobs_running", "Jobs that run.", ("kind",), [((row.kind,), row.n_running) for row in queue]
    )
    yield _gauge(
        "oldest_job_wait_seconds",
        "Age of the job that waits longest.",
        ("kind",),
        [((row.kind,), row.oldest_wait) for row in queue],
    )
    states = ["silent" if _is_silent(worker) else worker.state for worker in snapshot.workers]
    yield _gauge(
        "workers",
        "Worker processes.",
        ("state",),
        [((state,), states.count(state)) for state in _WORKER_STATES],
    )
    yield _gauge(
        "workers_alive",
        "Workers that take jobs.",
        (),
        [((), sum(worker.is_alive for worker in snapshot.workers))],
    )
    restarts = CounterMetricFamily(
        "shardlab_worker_restarts", "Worker processes that ended and were started again."
    )
    restarts.add_metric((), snapshot.n_worker_restarts)
    yield restarts
    refusals = snapshot.refusals or Counter()
    yield _counter("rate_limited_requests", "Requests above a limit.", ("limit",), refusals)
    yield _gauge(
        "ready",
        "Whether a condition of /readyz holds.",
        ("check",),
        [((check.name,), float(check.ok)) for check in snapshot.checks],
    )
    storage = snapshot.storage
    yield _gauge("disk_free_bytes", "Free on the data disk.", (), [((), storage.free_bytes)])
    yield _gauge("stored_bytes", "Stored by the server.", (), [((), storage.stored_bytes)])
    yield _gauge("event_streams", "Open event streams.", (), [((), snapshot.n_streams)])


def _is_silent(worker: WorkerView) -> bool:
    return worker.state == "ready" and not worker.is_alive
