"""Counters and histograms of one process, in memory.

Counting is a dictionary and a lock. The Prometheus client is loaded only when somebody asks for the
metrics, so a server on a laptop neither loads nor pays for it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Labels = tuple[str, ...]


class Counter:
    """Counts events, by label values.

    >>> refusals = Counter()
    >>> refusals.add("uploads"); refusals.add("uploads")
    >>> refusals.values()
    {('uploads',): 2.0}
    """

    def __init__(self, zeros: Iterable[Labels] = ()) -> None:
        self._lock = threading.Lock()
        self._values: dict[Labels, float] = dict.fromkeys(zeros, 0.0)

    def add(self, *labels: str, amount: float = 1.0) -> None:
        with self._lock:
            self._values[labels] = self._values.get(labels, 0.0) + amount

    def values(self) -> dict[Labels, float]:
        with self._lock:
            return dict(self._values)


@dataclass(frozen=True)
class HistogramValue:
    """How often values up to each bound occurred; the last count has no bound."""

    counts: tuple[int, ...]
    total: float


class Histogram:
    """Counts values in buckets, by label values.

    >>> seconds = Histogram((0.1, 1.0))
    >>> seconds.observe(0.1, "/lab"); seconds.observe(7.0, "/lab")
    >>> seconds.values()
    {('/lab',): HistogramValue(counts=(1, 0, 1), total=7.1)}
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self._lock = threading.Lock()
        self._values: dict[Labels, tuple[list[int], list[float]]] = {}

    def observe(self, value: float, *labels: str) -> None:
        position = bisect_left(self.bounds, value)
        with self._lock:
            entry = self._values.get(labels)
            if entry is None:
                entry = self._values[labels] = ([0] * (len(self.bounds) + 1), [0.0])
            counts, total = entry
            counts[position] += 1
            total[0] += value

    def values(self) -> dict[Labels, HistogramValue]:
        with self._lock:
            return {
                labels: HistogramValue(tuple(counts), total[0])
                for labels, (counts, total) in self._values.items()
            }
