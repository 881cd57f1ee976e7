"""Section `workers`: submissions through a server on PostgreSQL with 1 to 4 workers.

Every variant judges the same submissions, of several people at once. The baseline in the same run
is the judge called directly, in this process, one submission after the other. Needs PostgreSQL.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.options import Options
from benchmarks.report import Goal, Section
from shardlab.catalogue.tracks import load_catalogue
from shardlab.judge.judge import EXAMPLES_SEED, judge
from shardlab.judge.worker_pool import open_worker_pool

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from server.postgresql_cluster import (
    PostgresqlCluster,
    explain_missing_postgresql,
)
from server.shared_server import SLUG, SOLUTION, SharedServer, submit_all, wait_for

_N_PEOPLE = 6


def measure_workers(options: Options) -> Section:
    """Judge directly, then one at a time through a worker, then all at once with 1 to 4."""
    section = Section(
        "submissions through PostgreSQL and workers",
        ["what", "verdicts/s", "median wait", "95th percentile", "against the judge itself"],
    )
    section.notes.append(f"{SLUG}, 9 cases; a worker has 2 slots; all processes share the cores")
    goal = "one submission through an idle worker, against the judge itself"
    reason = explain_missing_postgresql()
    if reason:
        section.goals = [Goal(goal, 1.5, None, note=reason)]
        return section
    is_quick = options.rounds <= 3
    n_each = 2 if is_quick else 5
    direct = _judge_directly(n_each * 2)
    section.rows.append(["the judge itself", f"{1 / direct:.2f}", f"{direct:.2f} s", "", "1.00x"])
    cluster = PostgresqlCluster()
    try:
        cluster.start()
        idle = _measure_idle(cluster, n_each * 2)
        section.rows.append(
            ["1 worker, idle", f"{1 / idle:.2f}", f"{idle:.2f} s", "", f"{idle / direct:.2f}x"]
        )
        for n_workers in (1, 2) if is_quick else (1, 2, 3, 4):
            rate, waits = _measure_load(cluster, n_workers, n_each)
            section.rows.append(
                [
                    f"{n_workers} worker{'s' if n_workers > 1 else ''}, "
                    f"{len(waits)} submissions at once",
                    f"{rate:.2f}",
                    f"{statistics.median(waits):.1f} s",
                    f"{waits[int(len(waits) * 0.95)]:.1f} s",
                    f"{rate * direct:.2f}x the rate",
                ]
            )
            section.data.append({"workers": n_workers, "rate": rate, "waits": waits})
    finally:
        cluster.close()
    section.data.append({"direct_s": direct, "idle_s": idle})
    section.goals = [Goal(goal, 1.5, idle / direct)]
    return section


def _judge_directly(n: int) -> float:
    problem = load_catalogue().load_problem(SLUG)
    seconds = []
    with open_worker_pool(None, (), at_least="A") as pool:
        for number in range(n + 1):
            source = f"{SOLUTION}# {number}\n".encode()
            start = time.perf_counter()
            judge(pool, problem, source, kind="run", seed=EXAMPLES_SEED)
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])  # the first one loads modules


def _start(cluster: PostgresqlCluster, folder: str, n_workers: int) -> SharedServer:
    server = SharedServer(folder, cluster.new_database(), _N_PEOPLE)
    server.start_web("web1")
    server.wait_until_ready()
    for n in range(n_workers):
        server.start_worker(f"worker{n}")
    server.wait_for_workers(n_workers)
    for n in range(2 * n_workers):  # each sandbox loads modules with its first submissions
        server.submit(n % _N_PEOPLE, f"{SOLUTION}# warm {n}\n")
    wait_for(lambda: server.n_unfinished() == 0)
    return server


def _measure_idle(cluster: PostgresqlCluster, n: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        server = _start(cluster, folder, 1)
        try:
            for number in range(n):
                server.submit(0, f"{SOLUTION}# idle {number}\n")
                wait_for(lambda: server.n_unfinished() == 0)
            return statistics.median(_waits(server, n))
        finally:
            server.stop()


def _measure_load(
    cluster: PostgresqlCluster, n_workers: int, n_each: int
) -> tuple[float, list[float]]:
    """Return verdicts per second, and the sorted seconds from submission to verdict."""
    with tempfile.TemporaryDirectory() as folder:
        server = _start(cluster, folder, n_workers)
        try:
            sources = {
                person: [f"{SOLUTION}# {person} {n}\n" for n in range(n_each)]
                for person in range(_N_PEOPLE)
            }
            start = time.perf_counter()
            _, threads = submit_all(server, sources)
            for thread in threads:
                thread.join()
            wait_for(lambda: server.n_unfinished() == 0)
            seconds = time.perf_counter() - start
            n_submissions = _N_PEOPLE * n_each
            return n_submissions / seconds, sorted(_waits(server, n_submissions))
        finally:
            server.stop()


def _waits(server: SharedServer, n_last: int) -> list[float]:
    rows = server.rows("SELECT finished - created FROM job ORDER BY number DESC LIMIT :n", n=n_last)
    return [float(row[0]) for row in rows]
