"""The sandbox pool of the judge: which worker each role runs, and what they load first.

`tracer` executes a submission and exports its program; `runner` runs exported programs on the
hidden inputs and never sees the submission. `reference`, in a pool of its own, executes the
reference.py of an uploaded catalogue.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
from shardlab.sandbox.pool import ForkServerPool, open_sandbox_pool
from shardlab.sandbox.process import ForkServerConfig, Level, PoolConfig

Role = Literal["tracer", "runner"]
# Host devices of a worker. Test meshes have at most as many; larger ones are simulated.
N_DEVICES = 8

WORKERS = PoolConfig(
    # One for each role: what a submission learns about the memory of the tracer, such as the
    # addresses that all forks have in common, says nothing about the runner's.
    fork_servers=(
        ForkServerConfig(
            entry_points={"tracer": "shardlab.judge.worker.tracer"},
            warmup_module="shardlab.judge.worker.warmup",
        ),
        ForkServerConfig(
            entry_points={"runner": "shardlab.judge.worker.runner"},
            warmup_module="shardlab.judge.worker.runner_warmup",
        ),
    ),
    environment={
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(N_DEVICES),
        "TF_CPP_MIN_LOG_LEVEL": "3",  # XLA's log lines would count as the submission's output
    },
    ready_roles=("tracer", "runner"),
)


# Its fork server loads no JAX, and starts in a fraction of the time.
REFERENCES = PoolConfig(
    fork_servers=(
        ForkServerConfig(
            entry_points={"reference": "shardlab.judge.worker.reference_process"},
            warmup_module="shardlab.judge.worker.reference_process",
        ),
    ),
    # Arrays are small: threads of a linear algebra library would cost more than they save.
    environment={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
)


def open_reference_pool(
    hidden_paths: Sequence[str | os.PathLike[str]] = (), *, at_least: Level = "C"
) -> ForkServerPool:
    """Return a sandbox pool for references of uploaded catalogues; see `open_sandbox_pool`."""
    hidden = [*hidden_paths, BUILT_IN_CATALOGUE]
    return open_sandbox_pool(REFERENCES, None, hidden, at_least=at_least)


def open_worker_pool(
    level: Level | None = None,
    hidden_paths: Sequence[str | os.PathLike[str]] = (),
    *,
    at_least: Level = "C",
) -> ForkServerPool:
    """Return a sandbox pool for the judge; see `open_sandbox_pool`.

    The solutions of the built-in catalogue are always hidden from its workers.
    """
    hidden = [*hidden_paths, BUILT_IN_CATALOGUE]
    return open_sandbox_pool(WORKERS, level, hidden, at_least=at_least)
