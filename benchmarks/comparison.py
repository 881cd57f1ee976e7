"""Compares variants of one program: results are checked first, then calls are timed in rounds.

Within a round the variants run one after another, and their order rotates, so a machine that slows
down slows all of them. Ratios are taken within a round; the median over rounds is reported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.worker_client import NotMeasured, WorkerClient, start_worker

# A batch lasts about this long: several calls of a fast program, one of a slow one.
_BATCH_S = 0.3
_MAX_CALLS = 100
# A variant that has used this much time skips the remaining rounds.
_ALL_BATCHES_S = 45.0


@dataclasses.dataclass(frozen=True)
class Variant:
    """The command that starts a worker, and the time limit for each of its responses."""

    command: list[str]
    limit_s: float


@dataclasses.dataclass
class Measurement:
    """Times and memory of one variant. `failure` is why there are no (more) of them, or empty."""

    rounds: list[float] = dataclasses.field(default_factory=list)
    first_s: float | None = None
    peak_mb: float | None = None
    failure: str = ""

    @property
    def seconds(self) -> float | None:
        return statistics.median(self.rounds) if self.rounds else None


@dataclasses.dataclass(frozen=True)
class Ratio:
    """The median, minimum and maximum of a ratio over rounds."""

    median: float
    low: float
    high: float


def time_ratio(numerator: Measurement, denominator: Measurement) -> Ratio | None:
    """Return how many times as long `numerator` takes, or None if either has no rounds.

    >>> time_ratio(Measurement([2.0, 9.0, 6.0]), Measurement([1.0, 3.0, 3.0]))
    Ratio(median=2.0, low=2.0, high=3.0)
    """
    # One of them may have skipped its last rounds, so the lists can differ in length.
    ratios = sorted(a / b for a, b in zip(numerator.rounds, denominator.rounds, strict=False))
    return Ratio(statistics.median(ratios), ratios[0], ratios[-1]) if ratios else None


def memory_ratio(numerator: Measurement, denominator: Measurement) -> float | None:
    if numerator.peak_mb is None or denominator.peak_mb is None:
        return None
    return numerator.peak_mb / denominator.peak_mb


def compare_variants(variants: Mapping[str, Variant], n_rounds: int) -> dict[str, Measurement]:
    """Measure all variants; the results of the others must equal that of the first."""
    measurements = {name: Measurement() for name in variants}
    with contextlib.ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        # The first variant is the unsharded program, whose result is the reference.
        reference = str(Path(folder, "reference.npz"))
        ready: list[tuple[WorkerClient, int]] = []
        for number, (name, variant) in enumerate(variants.items()):
            with _record_failure(measurements[name]):
                client = stack.enter_context(start_worker(name, variant.command, variant.limit_s))
                n_calls = _warm_up(client, measurements[name])
                client.request("check_result" if number else "save_result", path=reference)
                ready.append((client, n_calls))
        _time_rounds(ready, measurements, n_rounds)
    return measurements


@contextlib.contextmanager
def _record_failure(measurement: Measurement) -> Iterator[None]:
    try:
        yield
    except NotMeasured as reason:
        measurement.failure = str(reason)


def _warm_up(client: WorkerClient, measurement: Measurement) -> int:
    """Make the first calls, and return how many calls fill a batch."""
    # The first call compiles, so the second one tells how long a call takes.
    response = client.request("first_calls")
    measurement.first_s, measurement.peak_mb = response["first_s"], response["peak_mb"]
    return max(1, min(_MAX_CALLS, round(_BATCH_S / response["second_s"])))


def _time_rounds(
    ready: Sequence[tuple[WorkerClient, int]],
    measurements: dict[str, Measurement],
    n_rounds: int,
) -> None:
    spent_s = {client.name: 0.0 for client, _ in ready}
    for number in range(n_rounds):
        shift = number % len(ready) if ready else 0
        for client, n_calls in [*ready[shift:], *ready[:shift]]:
            measurement = measurements[client.name]
            if measurement.failure or spent_s[client.name] > _ALL_BATCHES_S:
                continue
            with _record_failure(measurement):
                seconds = client.request("time_calls", n_calls=n_calls)["seconds"]
                # The median of a batch ignores single calls that the scheduler interrupted.
                measurement.rounds.append(statistics.median(seconds))
                spent_s[client.name] += sum(seconds)
