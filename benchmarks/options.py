"""How much to measure: device counts, rounds and time limits. Program sizes are fixed."""

from __future__ import annotations

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Options:
    """Device counts, repetitions and time limits of one benchmark run."""

    devices: tuple[int, ...] = (8, 64, 256, 1024)
    rounds: int = 9
    # A process has only one first call, so first calls are repeated in this many new processes.
    processes: int = 3
    # Time limit for one response of a worker: its start, its first calls, or one batch of calls.
    limit_s: float = 180.0
    # Meshes of each program of section autoshard, and its time limit for one search.
    meshes: int = 3
    search_s: float = 30.0
    # Whether it also proves each answer, which compiles and runs the program.
    prove: bool = False
    # Clones of peers of the planner; they are never committed.
    autoparallel: Path | None = None
    calculon: Path | None = None


QUICK = Options(devices=(8, 64), rounds=3, processes=1, limit_s=60.0, meshes=1, search_s=5.0)
