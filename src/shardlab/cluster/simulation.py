"""Runs the simulation of a launch in a process of its own and returns its records."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace

from shardlab.cluster.launch_target import worker_arguments
from shardlab.cluster.messages import LaunchJob, ProcessFailure, decode_message, encode_message
from shardlab.cluster.records import SimulationRecord
from shardlab.errors import ProgramCrashed, TimeLimitReached
from shardlab.execution.messages import MessageError


def simulate_launch(
    job: LaunchJob, *, n_devices: int, limit_seconds: float | None = None
) -> SimulationRecord:
    """Run the program of a launch on as many virtual devices as the launch had.

    What the program prints is dropped: it is the same text again. Raises what the simulation cannot
    do, or the exception of the program in it.
    """
    request = replace(job, process=0, n_processes=1, devices_per_process=n_devices)
    process = subprocess.Popen(
        [sys.executable, *worker_arguments("simulation_worker")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=_environment(),
    )
    assert process.stdin
    assert process.stdout
    try:
        # Standard input stays open: when it closes, the worker knows that this process is gone.
        process.stdin.write(encode_message(request).encode() + b"\n")
        process.stdin.flush()
        line = _read_line(process, limit_seconds, job)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdin.close()
        process.stdout.close()
    try:
        message = decode_message(line)
    except MessageError as error:
        raise ProgramCrashed(
            f"The simulation ended without a result: {error}.",
            where=job.command_line,
            fix="run `shardlab run` with the same program to see what it prints.",
        ) from None
    if isinstance(message, ProcessFailure):
        raise message.failure.to_error()
    assert isinstance(message, SimulationRecord)
    return message


def _environment() -> dict[str, str]:
    """Return an environment in which the simulation finds no cluster and no accelerator."""
    prefixes = ("SLURM_", "OMPI_", "PMI_", "PMIX_", "JAX_COORDINATOR", "KUBERNETES_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "JAX_PLATFORMS": "cpu"}


def _read_line(
    process: subprocess.Popen[bytes], limit_seconds: float | None, job: LaunchJob
) -> bytes:
    import threading

    assert process.stdout
    lines: list[bytes] = []
    # mypy forgets the assertion inside of a lambda.
    reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    reader.join(limit_seconds)
    if reader.is_alive():
        raise TimeLimitReached(
            f"The simulation was still running after {limit_seconds:g} s and was stopped.",
            where=job.command_line,
            fix="allow more time (--time-limit 600), or leave out --verify.",
        )
    return lines[0]
