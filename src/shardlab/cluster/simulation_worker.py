"""The simulation of a launch: the same target on virtual devices, with the same records.

Started by `simulation.py` with the job on standard input, like a process of the launch.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shardlab.cluster.messages import (
    LaunchJob,
    Message,
    ProcessFailure,
    Status,
    decode_message,
    encode_message,
)
from shardlab.cluster.records import SimulationRecord


def main() -> None:
    from shardlab.execution.worker import open_channel

    channel, line = open_channel()
    job = decode_message(line)
    assert isinstance(job, LaunchJob)
    channel.write(encode_message(_simulate(job)) + "\n")
    channel.flush()
    os._exit(0)


def _simulate(job: LaunchJob) -> Message:
    sys.path.insert(0, "")  # replaced by the script's own folder, as `python` does
    from shardlab.cluster.run_target import loading_job
    from shardlab.execution.worker import describe_failure

    try:
        return _run_simulated(job)
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        failure = describe_failure(error, loading_job(job))
        return ProcessFailure(failure=failure, status=Status(phase="running"))


def _run_simulated(job: LaunchJob) -> SimulationRecord:
    from shardlab._jax.executed_programs import distributed_calls_ignored
    from shardlab.cluster.observed_programs import ProgramLog
    from shardlab.cluster.run_target import run_target
    from shardlab.errors import LabError
    from shardlab.simulator.simulated_mode import simulated
    from shardlab.tracing.trace import Trace

    log = ProgramLog(job.max_shard_elements)
    notes, traces = list[str](), dict[str, Trace]()
    with simulated(job.n_devices):
        with _observed(log), distributed_calls_ignored():
            run_target(job)
        records = []
        for program in log.programs:
            # Compiled for the virtual devices in a process of its own, without running it.
            try:
                record = program.record(has_collectives=job.has_collectives)
            except LabError as error:
                notes.append(f"{program.key} was not compiled in the simulation: {error.what}")
                record = program.record(has_collectives=False)
            records.append(record)
        for program in log.programs if job.has_traces else ():
            try:
                traces[program.key] = _trace_program(program)
            except LabError as error:
                notes.append(f"{program.key} was not traced: {error.what}")
    # Programs that were only lowered, or whose calls raised, have no results.
    called = tuple(record for record in records if record.n_calls)
    return SimulationRecord(programs=called, traces=traces, notes=tuple(notes))


def _trace_program(program: Any) -> Any:
    from shardlab.simulator.script_programs import program_of_jaxpr
    from shardlab.tracing.observe import observe
    from shardlab.tracing.trace import make_trace

    run = program_of_jaxpr(program.closed, program.arg_types, program.params)
    trace = make_trace(observe(run.function, run.args, None), ())
    return dataclasses.replace(trace, program=program.key)


@contextmanager
def _observed(log: Any) -> Iterator[None]:
    """Add the programs that simulated mode runs, and the results of their calls, to the log."""
    from shardlab.simulator.virtual_devices import jit_execution

    # What each jaxpr was lowered with last; the jaxprs are kept, so that their ids stay unique.
    lowered: dict[int, tuple[Any, dict[str, Any]]] = {}

    def add_program(args: Any, params: dict[str, Any]) -> None:
        lowered[id(params["jaxpr"])] = args, params

    def add_executable(closed: Any, executable: Any) -> None:
        # As on real processes: a sharded argument that is not used leaves a program of one device.
        if executable.n_devices < 2 or id(closed) not in lowered:
            return
        if (program := log.add(*lowered[id(closed)])) is not None:
            program.hlo_text = executable.get_hlo_text
            program.n_devices = executable.n_devices
            program.device_ids = tuple(range(executable.n_devices))

    def add_results(closed: Any, outs: Any) -> None:
        program = log.find(closed)
        if program is not None and not _are_on_one_device(outs):
            log.add_call(program, outs, time.perf_counter() - started)

    started = time.perf_counter()
    observers = (
        (jit_execution.program_observers, add_program),
        (jit_execution.executable_observers, add_executable),
        (jit_execution.result_observers, add_results),
    )
    # To mypy each pair is of any list with any observer; above they belong together.
    for registered, observer in observers:
        registered.append(observer)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for registered, observer in observers:
            registered.remove(observer)  # type: ignore[arg-type]


def _are_on_one_device(outs: Any) -> bool:
    """Return whether these are results of a call on one device of a program of several."""
    return bool(outs) and all(out.sharding.num_devices == 1 for out in outs)


if __name__ == "__main__":
    main()
