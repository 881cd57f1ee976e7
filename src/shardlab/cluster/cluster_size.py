"""Whether the processes that were started form one cluster.

A process that finds no cluster is a cluster of one, and JAX says nothing: it computes the whole
program alone, as often as there are processes. Ray's JaxTrainer does this on CPUs. What started the
processes usually says in the environment how many there are; that number is compared with JAX's.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from shardlab.errors import ClusterSplit


@dataclass(frozen=True)
class WorldSize:
    """How many processes a launcher says that it started, and where it says so."""

    count: int
    variable: str


# SLURM, Open MPI, PMI (MPICH, Intel MPI), torchrun and Ray Train, and what a user may set.
_VARIABLES = (
    "SHARDLAB_WORLD_SIZE",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "WORLD_SIZE",
)


def expected_world_size(environment: Mapping[str, str] = os.environ) -> WorldSize | None:
    """Return the number of processes by the environment, or None if nothing says it.

    >>> expected_world_size({"OMPI_COMM_WORLD_SIZE": "4"})
    WorldSize(count=4, variable='OMPI_COMM_WORLD_SIZE')
    """
    for variable in _VARIABLES:
        text = environment.get(variable, "")
        if text.isdecimal() and int(text) > 0:
            return WorldSize(int(text), variable)
    return None


def ray_world_size() -> WorldSize | None:
    """Return the number of workers of the Ray Train run that this process belongs to, if any."""
    train = sys.modules.get("ray.train")  # loaded in each of its workers
    if train is None:
        return None
    try:
        return WorldSize(int(train.get_context().get_world_size()), "ray.train.get_context()")
    except Exception:  # a process that uses Ray, but is no worker of Ray Train
        return None


def check_cluster_size(actual: int, process: int, requested: int = 1) -> None:
    """Raise `ClusterSplit` if JAX sees fewer or more processes than were started.

    `requested` is the number of the launcher; 1 if something else started the processes.
    """
    expected = (
        WorldSize(requested, "the launcher")
        if requested > 1
        else ray_world_size() or expected_world_size()
    )
    if expected is None or expected.count == actual:
        return
    is_alone = actual == 1
    seen = "only itself" if is_alone else f"{actual} processes"
    raise ClusterSplit(
        f"{expected.count} processes were started (by {expected.variable}), and JAX sees {seen}: "
        f"{'each would compute the whole program alone' if is_alone else 'they form no cluster'}.",
        where=f"process {process} on {socket.gethostname()}, JAX_PLATFORMS="
        f"{os.environ.get('JAX_PLATFORMS', '')!r}",
        fix="tell each process where process 0 is, how many there are, and which one it is: "
        "--coordinator, --processes and --process-id, or JAX_COORDINATOR_ADDRESS, "
        "JAX_NUM_PROCESSES and JAX_PROCESS_ID. In Ray's JaxTrainer on CPUs take them from "
        "ray.train.get_context().",
    )
