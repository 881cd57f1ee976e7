"""The sandboxes of the server's workers: the lab's first, the judge's as soon as it is open.

A fork server loads JAX, which takes seconds of a core. The first thing that people do is to run a
program, so the lab's is not made to share the cores with the judge's two.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from shardlab.catalogue.tracks import BUILT_IN_CATALOGUE
from shardlab.judge.confined_reference import REFERENCE_ROLE
from shardlab.judge.worker_pool import WORKERS
from shardlab.sandbox.pool import ForkServerPool, open_sandbox_pool
from shardlab.sandbox.process import (
    ForkServerConfig,
    Level,
    ProcessLimits,
    SandboxedProcess,
    SandboxPool,
)

LAB_ROLE = "lab"
_POOL = replace(
    WORKERS,
    # A fork server of its own: the judge's must not share pages with programs of the lab.
    fork_servers=(
        ForkServerConfig(
            entry_points={LAB_ROLE: "shardlab.server.confined.lab_process"},
            warmup_module="shardlab.server.confined.lab_warmup",
        ),
    ),
    ready_roles=(LAB_ROLE,),
)


def open_lab_pool(
    hidden_paths: Sequence[str | os.PathLike[str]], *, at_least: Level = "C"
) -> ForkServerPool:
    """Return the pool of the lab; its processes cannot read `hidden_paths`, nor the solutions."""
    hidden = [*hidden_paths, BUILT_IN_CATALOGUE]
    return open_sandbox_pool(_POOL, None, hidden, at_least=at_least)


class StagedPool:
    """The pool of the lab, and from some moment on also that of the judge.

    That of references is opened when the first one is needed: most servers have no uploads.
    """

    def __init__(
        self, lab: SandboxPool, open_references: Callable[[], SandboxPool] | None = None
    ) -> None:
        self.level, self.confinement = lab.level, lab.confinement
        self._lab = lab
        self._judge: SandboxPool | None = None
        self._references: SandboxPool | None = None
        self._open_references = open_references
        self._opening = threading.Lock()
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def can_judge(self) -> bool:
        return self._judge is not None

    def add_judge(self, judge: SandboxPool) -> None:
        """Serve the roles of the judge too."""
        with self._lock:
            if self._is_closed:
                judge.close()
                return
            # A judgement says at which level it was made: the weaker of the two.
            if judge.level > self.level:
                self.level, self.confinement = judge.level, judge.confinement
            self._judge = judge

    def start_process(self, role: str, limits: ProcessLimits) -> SandboxedProcess:
        if role == REFERENCE_ROLE:
            return self._reference_pool().start_process(role, limits)
        pool = self._lab if role == LAB_ROLE else self._judge
        assert pool is not None, "a submission was claimed before the judge was open"
        return pool.start_process(role, limits)

    def _reference_pool(self) -> SandboxPool:
        with self._opening:
            if self._references is None:
                assert self._open_references is not None
                references = self._open_references()
                with self._lock:
                    self._references = references
                    if self._is_closed:
                        references.close()
            return self._references

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for pool in (self._lab, self._judge, self._references):
            if pool is not None:
                pool.close()
