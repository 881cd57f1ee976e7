"""Section `judge`: verdicts on four meshes by the warm judge, against a new process for each."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.judge_submission import judge_correct_submission
from benchmarks.options import Options
from benchmarks.report import Goal, Section, milliseconds_text
from benchmarks.worker_client import ROOT
from shardlab.judge.worker_pool import open_worker_pool

_WARM_2, _WARM_1, _COLD = "warm, 2 workers", "warm, 1 worker", "cold, 2 processes"
# The fork server sets the same for the warm judge; otherwise threads alone would decide.
_COLD_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "8",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OPENBLAS_NUM_THREADS": "1",
}


def measure_judge(options: Options) -> Section:
    """Time batches of each variant alternately; the warm judge is sandboxed as far as possible."""
    n_rounds = max(3, options.rounds // 2)
    seconds: dict[str, list[list[float]]] = {_WARM_2: [], _WARM_1: [], _COLD: []}
    rates: dict[str, list[float]] = {_WARM_2: [], _WARM_1: [], _COLD: []}
    with open_worker_pool() as pool:
        # Opening the pool starts processes that probe the sandbox; they must have exited.
        time.sleep(0.5)
        idle_mb = _children_memory_mb()

        def judge_warm(number: int) -> None:
            judge_correct_submission(pool, number)

        variants = {
            _WARM_2: (judge_warm, 12, 2),
            _WARM_1: (judge_warm, 8, 1),
            _COLD: (_judge_cold, 4, 2),
        }
        judge_warm(0)  # loads the modules that the judge imports late
        for number in range(n_rounds):
            for name, (judge_one, n, n_threads) in variants.items():
                batch_seconds, rate = _time_batch(judge_one, number * n, n, n_threads)
                seconds[name].append(batch_seconds)
                rates[name].append(rate)
    return _make_section(seconds, rates, idle_mb, pool.level)


def _time_batch(
    judge_one: Callable[[int], None], first: int, n: int, n_threads: int
) -> tuple[list[float], float]:
    """Return the seconds of each of n submissions, and the verdicts per second."""

    def time_one(number: int) -> float:
        start = time.perf_counter()
        judge_one(number)
        return time.perf_counter() - start

    start = time.perf_counter()
    # Threads are enough: most of the work is in other processes, which the judge waits for.
    with ThreadPoolExecutor(n_threads) as executor:
        seconds = list(executor.map(time_one, range(first, first + n)))
    return seconds, n / (time.perf_counter() - start)


def _judge_cold(number: int) -> None:
    """Judge in a new process: tracer and runner in it, no sandbox, no fork server."""
    command = [sys.executable, "-m", "benchmarks.judge_submission"]
    environment = {**os.environ, **_COLD_ENVIRONMENT}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)


def _make_section(
    seconds: dict[str, list[list[float]]],
    rates: dict[str, list[float]],
    idle_mb: float | None,
    level: str,
) -> Section:
    section = Section(
        f"The judge: a verdict on four meshes (sandbox level {level})",
        ["judge", "verdicts per second, median (min-max)", "ms per verdict, median"],
    )
    for name, batch_rates in rates.items():
        low, high = min(batch_rates), max(batch_rates)
        rate_text = f"{statistics.median(batch_rates):.2f} ({low:.2f}-{high:.2f})"
        verdict_s = _median_seconds(seconds[name])
        section.rows.append([name, rate_text, milliseconds_text(verdict_s)])
        section.data.append({"judge": name, "rates": batch_rates, "seconds": seconds[name]})
    section.goals = [
        Goal("warm judge / cold process, throughput", 6, _speedup(rates, _COLD), at_most=False),
        Goal(
            "warm verdict on four meshes, median",
            0.25,
            _median_seconds(seconds[_WARM_1]),
            unit=" s",
        ),
    ]
    section.notes = [
        f"From 1 to 2 workers the throughput grows {_speedup(rates, _WARM_1):.2f} times.",
        "A cold process imports JAX and is tracer and runner in one, without a sandbox.",
    ]
    if idle_mb is not None:
        section.notes.append(
            f"The idle fork server uses {idle_mb:,.0f} MB (proportional set size)."
        )
        section.data.append({"idle_mb": idle_mb})
    return section


def _median_seconds(batches: list[list[float]]) -> float:
    return statistics.median(seconds for batch in batches for seconds in batch)


def _speedup(rates: dict[str, list[float]], baseline: str) -> float:
    """Return the throughput of two warm workers divided by that of the baseline."""
    pairs = zip(rates[_WARM_2], rates[baseline], strict=True)
    return statistics.median(warm / baseline_rate for warm, baseline_rate in pairs)


def _children_memory_mb() -> float | None:
    """Return the proportional set size of all child processes, or None if it is unreadable."""
    total_kib = 0
    for pid in _descendants(os.getpid()):
        try:
            # Forks share most pages; PSS divides a page's size by the processes that map it.
            text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has just exited
        except OSError:
            return None
        pss = (int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
        total_kib += sum(pss)
    return total_kib * 1024 / 1e6


def _descendants(pid: int) -> list[int]:
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text("ascii").split()
        ]
    except OSError:
        return []
    return [process for child in children for process in (child, *_descendants(child))]
