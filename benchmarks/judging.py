"""A verdict on four meshes from the warm judge, against a new process for each submission."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.contender import ROOT
from benchmarks.judged import submit
from benchmarks.options import Options
from benchmarks.section import Bar, Section, milliseconds
from shardlab.judge.worker_pool import open_worker_pool

_WARM_2, _WARM_1, _COLD = "warm, 2 workers", "warm, 1 worker", "cold, 2 processes"
_COLD_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "8",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OPENBLAS_NUM_THREADS": "1",
}


def run(options: Options) -> Section:
    """Time batches of all in turn; the warm judge confined as far as this machine can."""
    n_rounds = max(3, options.rounds // 2)
    seconds: dict[str, list[list[float]]] = {_WARM_2: [], _WARM_1: [], _COLD: []}
    rates: dict[str, list[float]] = {_WARM_2: [], _WARM_1: [], _COLD: []}
    with open_worker_pool() as house:
        time.sleep(0.5)  # what tried the house must be gone
        idle_mb = _memory_mb()

        def warm(number: int) -> None:
            submit(house, number)

        contenders = {_WARM_2: (warm, 12, 2), _WARM_1: (warm, 8, 1), _COLD: (_cold, 4, 2)}
        warm(0)
        for number in range(n_rounds):
            for name, (judge_one, n, workers) in contenders.items():
                each, rate = _batch(judge_one, number * n, n, workers)
                seconds[name].append(each)
                rates[name].append(rate)
    return _section(seconds, rates, idle_mb, house.level)


def _batch(
    judge_one: Callable[[int], None], first: int, n: int, workers: int
) -> tuple[list[float], float]:
    """Return how long each of n submissions took, and how many a second were judged."""

    def timed(number: int) -> float:
        start = time.perf_counter()
        judge_one(number)
        return time.perf_counter() - start

    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        each = list(pool.map(timed, range(first, first + n)))
    return each, n / (time.perf_counter() - start)


def _cold(number: int) -> None:
    """Judge in a new process: imports, author and runner in it, no confinement, no fork server."""
    command = [sys.executable, "-m", "benchmarks.judged"]
    environment = {**os.environ, **_COLD_ENVIRONMENT}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def _section(
    seconds: dict[str, list[list[float]]],
    rates: dict[str, list[float]],
    idle_mb: float | None,
    level: str,
) -> Section:
    section = Section(
        f"The judge: a verdict on four meshes (level {level})",
        ["judge", "verdicts a second (lowest-highest)", "ms each, median"],
    )
    for name, each in rates.items():
        took = statistics.median(one for batch in seconds[name] for one in batch)
        low, high = min(each), max(each)
        told = f"{statistics.median(each):.2f} ({low:.2f}-{high:.2f})"
        section.rows.append([name, told, milliseconds(took)])
        section.data.append({"judge": name, "rates": each, "seconds": seconds[name]})
    warm_s = statistics.median(one for batch in seconds[_WARM_1] for one in batch)
    section.bars = [
        Bar("warm judge / cold process, throughput", 6, _ratio(rates, _COLD), at_most=False),
        Bar("warm verdict on four meshes, median", 0.25, warm_s, unit=" s"),
    ]
    section.notes = [
        f"From 1 to 2 workers the throughput grows {_ratio(rates, _WARM_1):.2f} times.",
        "A cold process imports JAX and is author and runner in one, without confinement.",
    ]
    if idle_mb is not None:
        section.notes.append(
            f"The idle fork server holds {idle_mb:,.0f} MB (proportional set size)."
        )
        section.data.append({"idle_mb": idle_mb})
    return section


def _ratio(rates: dict[str, list[float]], below: str) -> float:
    """Return how many times the throughput of another contender two warm workers have."""
    pairs = zip(rates[_WARM_2], rates[below], strict=True)
    return statistics.median(warm / other for warm, other in pairs)


def _memory_mb() -> float | None:
    """Return what this process's children hold, shared pages counted by their share."""
    total = 0
    for pid in _descendants(os.getpid()):
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        except OSError:
            return None
        total += sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    return total / 1024


def _descendants(pid: int) -> list[int]:
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text("ascii").split()
        ]
    except OSError:
        return []
    return [each for child in children for each in (child, *_descendants(child))]
