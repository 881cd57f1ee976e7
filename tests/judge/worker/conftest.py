"""One fork server, one author and one runner for all tests of this directory."""

from __future__ import annotations

import pytest
from cell_bench import Bench

from shardlab.sandbox.pool import open_sandbox_pool


@pytest.fixture(scope="session")
def house():
    # What is tested here does not depend on the confinement; its own tests are elsewhere.
    with open_sandbox_pool("C") as opened:
        yield opened


@pytest.fixture(scope="session")
def bench(house):
    made = Bench(house)
    yield made
    made.close()
