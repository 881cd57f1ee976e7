"""One fork server, one tracer and one runner for all tests of this directory."""

from __future__ import annotations

import pytest
from worker_bench import WorkerBench

from shardlab.judge.worker_pool import open_worker_pool


@pytest.fixture(scope="session")
def pool():
    # Nothing here depends on the confinement, which has tests of its own.
    with open_worker_pool("C") as opened:
        yield opened


@pytest.fixture(scope="session")
def bench(pool):
    bench = WorkerBench(pool)
    yield bench
    bench.close()
