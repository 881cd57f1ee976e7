"""The sandbox of the server's workers: the judge's roles, and one for the lab."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
from shardlab.judge.worker_pool import WORKERS
from shardlab.sandbox.pool import ForkServerPool, open_sandbox_pool
from shardlab.sandbox.process import ForkServerConfig, Level

LAB_ROLE = "lab"
# A fork server of its own: the judge's must not share pages with programs of the lab.
_LAB_FORK_SERVER = ForkServerConfig(
    entry_points={LAB_ROLE: "shardlab.server.confined.lab_process"},
    warmup_module="shardlab.server.confined.lab_warmup",
)
_POOL = replace(
    WORKERS,
    fork_servers=(*WORKERS.fork_servers, _LAB_FORK_SERVER),
    ready_roles=(*WORKERS.ready_roles, LAB_ROLE),
)


def open_lab_pool(
    hidden_paths: Sequence[str | os.PathLike[str]], *, at_least: Level = "C"
) -> ForkServerPool:
    """Return the pool; its processes cannot read `hidden_paths`, nor the solutions."""
    hidden = [*hidden_paths, BUILT_IN_CATALOGUE]
    return open_sandbox_pool(_POOL, None, hidden, at_least=at_least)
