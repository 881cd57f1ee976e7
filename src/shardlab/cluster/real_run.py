"""Connects this process to the others and runs the program under observation."""

from __future__ import annotations

import contextlib
import inspect
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import jax

from shardlab._jax.executed_programs import (
    Executable,
    distributed_calls_ignored,
    observe_executions,
)
from shardlab.cluster.cluster_size import check_cluster_size
from shardlab.cluster.diagnosis import DEVICE_PUT
from shardlab.cluster.messages import KnownCollective, KnownCollectives, LaunchJob, Message
from shardlab.cluster.observed_programs import ObservedProgram, ProgramLog
from shardlab.cluster.process_progress import ProcessProgress
from shardlab.cluster.records import ProcessRecord
from shardlab.cluster.run_target import run_target
from shardlab.collectives.call import CollectiveCall

# The launcher decides when to give up, with more evidence than JAX has.
_NO_LIMIT_SECONDS = 10**6
# Under a cluster manager it is the only sign that the host of process 0 has gone; a process that
# gets no processor for JAX's 100 s is not dead.
_CLUSTER_HEARTBEAT_SECONDS = 600

_DEVICE_PUT = inspect.unwrap(jax.device_put).__code__


def hidden_paths() -> tuple[str, ...]:
    """Return prefixes of files whose lines are not the user's."""
    own = str(Path(__file__).parents[1])
    return (
        "<frozen ",
        "<string>",
        own,
        str(Path(jax.__file__).parent),
        sys.prefix,
        sys.base_prefix,
    )


def connect(job: LaunchJob) -> None:
    """Initialize jax.distributed as the job says, or as JAX detects it."""
    if job.platform:
        jax.config.update("jax_platforms", job.platform)
    if job.devices_per_process and (job.platform or "cpu") == "cpu":
        jax.config.update("jax_num_cpu_devices", job.devices_per_process)
    if job.coordinator is None:
        # A cluster manager kills what it started; this limit only ends a job that never completes.
        jax.distributed.initialize(heartbeat_timeout_seconds=_CLUSTER_HEARTBEAT_SECONDS)
    else:
        port = job.coordinator.rpartition(":")[2]
        jax.distributed.initialize(
            job.coordinator,
            job.n_processes,
            job.process,
            initialization_timeout=_NO_LIMIT_SECONDS,
            # A process that gets no processor for 100 s would be ended as dead.
            heartbeat_timeout_seconds=_NO_LIMIT_SECONDS,
            # All interfaces is JAX's default; nothing of a local launch needs the network.
            coordinator_bind_address=f"127.0.0.1:{port}" if job.is_loopback else None,
            cluster_detection_method="deactivate",
        )
    check_cluster_size(jax.process_count(), jax.process_index(), job.n_processes)


def run_observed(
    job: LaunchJob, progress: ProcessProgress, send: Callable[[Message], None]
) -> ProcessRecord:
    """Run the program and return the record of this process."""
    log = ProgramLog(job.max_shard_elements)
    observer = _Observer(log, progress, send)
    with observe_executions(observer), distributed_calls_ignored():
        run_target(job)
    progress.finish()
    devices = jax.devices()
    local = jax.local_devices()
    return ProcessRecord(
        process=jax.process_index(),
        n_processes=jax.process_count(),
        host=socket.gethostname(),
        pid=os.getpid(),
        platform=local[0].platform,
        device_kind=local[0].device_kind,
        devices=tuple(i for i, d in enumerate(devices) if d.process_index == jax.process_index()),
        jax_version=jax.__version__,
        peak_memory_bytes=_peak_memory(),
        device_peak_bytes=tuple(
            (device.memory_stats() or {}).get("peak_bytes_in_use") for device in local
        ),
        programs=tuple(
            program.record(has_collectives=jax.process_index() == 0) for program in log.programs
        ),
    )


def _peak_memory() -> int | None:
    with contextlib.suppress(ImportError):
        import resource

        n_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return n_bytes if sys.platform == "darwin" else n_bytes * 1024
    return None


class _Observer:
    """Fills the log and the progress of this process (`ExecutionObserver`)."""

    def __init__(
        self, log: ProgramLog, progress: ProcessProgress, send: Callable[[Message], None]
    ) -> None:
        self._log, self._progress, self._send = log, progress, send
        self._programs: dict[Executable, ObservedProgram | None] = {}

    @contextlib.contextmanager
    def compiling(self, name: str) -> Iterator[None]:
        with self._progress.entered("compiling", name):
            yield

    def compiled(self, executable: Executable) -> None:
        if len(executable.device_ids) < 2 or executable.lowered_from is None:
            return
        program = self._log.add(executable.lowered_from.args, executable.lowered_from.params)
        self._programs[executable] = program
        if program is None:
            return
        program.device_ids, program.hlo_text = executable.device_ids, executable.hlo_text
        program.n_devices = len(executable.device_ids)
        ids = set(executable.device_ids)
        program.processes = tuple(
            sorted({device.process_index for device in jax.devices() if device.id in ids})
        )
        program.compile_seconds = (program.compile_seconds or 0.0) + executable.compile_seconds
        if executable.is_on_several_processes:
            calls = tuple(map(_known_collective, program.collectives() or ()))
            self._send(KnownCollectives(program=program.key, collectives=calls))

    def execute(self, executable: Executable, run: Callable[[], Any]) -> Any:
        if len(executable.device_ids) < 2:
            return run()
        program = self._programs.get(executable)
        name = program.key if program else _name_of_jax_program(executable.name)
        start = time.perf_counter()
        # Waiting here costs the overlap of host and devices, and gives each execution a time and a
        # line of the program at which it blocks.
        with self._progress.entered("executing", name):
            outs = jax.block_until_ready(run())
        seconds = time.perf_counter() - start
        if executable.is_on_several_processes:
            self._progress.count_execution()
        if program is not None:
            self._log.add_call(program, outs, seconds)
        return outs


def _name_of_jax_program(name: str) -> str:
    """Return the function of JAX that the program called, where its own jit says nothing."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _DEVICE_PUT:
            return DEVICE_PUT
        frame = frame.f_back
    return name


def _known_collective(call: CollectiveCall) -> KnownCollective:
    return KnownCollective(
        op=call.op,
        mesh_axes=call.mesh_axes,
        line=str(call.source) if call.source.line else "",
        is_conditional=any(scope.kind in ("cond", "while") for scope in call.within),
    )
