"""Records a program that a script runs itself, with the arrays of its first call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from shardlab._text.nearest import nearest_name
from shardlab.errors import NothingToRecord, UnknownFunction
from shardlab.recording.record_program import MAX_STEPS, ProgramCall, record_call
from shardlab.recording.recording import Recording
from shardlab.simulator.script_programs import (
    ProgramRun,
    ScriptRun,
    observe_programs,
    run_script,
)
from shardlab.tracing.jaxpr_flops import count_jaxpr_flops


def record_script(
    path: str,
    args: Sequence[str],
    target: str | None = None,
    *,
    hardware: str | None = None,
    max_steps: int = MAX_STEPS,
) -> tuple[Recording, BaseException | None]:
    """Run a script in simulated mode; return the recording, and the exception that ended it.

    The program that computes most is recorded, or the one named `target`, in its first call.
    """
    script_run = run_script(path, args, keep_values=True)
    if script_run.ended is not None and not script_run.programs:
        raise script_run.ended
    call = captured_call(script_run.programs, target, where=path)
    return record_call(call, hardware=hardware, max_steps=max_steps), script_run.ended


@contextmanager
def collect_calls() -> Iterator[Callable[..., Recording]]:
    """Observe what runs within this block; yield a function that records one of its programs."""
    script_run = ScriptRun()

    def record_observed(target: str | None = None, *, where: str = "") -> Recording:
        return record_call(captured_call(script_run.programs, target, where=where))

    with observe_programs(script_run, keep_values=True):
        yield record_observed


def captured_call(
    programs: Sequence[ProgramRun], target: str | None = None, *, where: str = ""
) -> ProgramCall:
    """Return the call of the program that is named, or of the one that computes most."""
    if not programs:
        raise NothingToRecord(
            "The program ran no shard_map and no jit with shardings.",
            where=where,
            fix="record a function (file.py:function), or let the script run one step.",
        )
    if target is None:
        program = max(programs, key=_program_size)
    else:
        by_name = {program.name: program for program in programs}
        if target not in by_name:
            match = nearest_name(target, list(by_name))
            raise UnknownFunction(
                f"The script ran no program named {target[:60]!r}.",
                where=where,
                fix=f"Did you mean {match!r}?" if match else f"name one of: {', '.join(by_name)}.",
            )
        program = by_name[target]
    return ProgramCall(
        function=program.function,
        args=program.values,
        title=program.name,
        names=program.parameter_names,
        is_captured=True,
    )


def _program_size(program: ProgramRun) -> tuple[int, int]:
    """Return what decides which program of a script is recorded: FLOPs, then equations."""
    jaxpr = program.function.trace(*program.args).jaxpr  # type: ignore[attr-defined]  # a jit
    return count_jaxpr_flops(jaxpr).total, len(jaxpr.jaxpr.eqns)
