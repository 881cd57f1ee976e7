"""Sends one request to a new confined process, and turns every way it can end into a sentence."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

from shardlab.judge.failures import exit_signal, is_judge_fault, split_stack_dump
from shardlab.judge.protocol.requests import StackDumps
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sandbox.process import (
    ExitReason,
    ProcessEnded,
    ProcessLimits,
    SandboxedProcess,
    SandboxPool,
)
from shardlab.server.confined.lab_pool import LAB_ROLE
from shardlab.server.confined.messages import (
    PROGRAM_FILE,
    ConfinedRequest,
    ConfinedResponse,
    ProgramError,
)
from shardlab.server.jobs.queue import JobError

LIMITS = ProcessLimits()  # those of the judge, so that the process that is ready has them too
_STACK_DUMP_SHARE = 0.8  # of the time; the rest is for the dump to arrive
_STACK_LINE = re.compile(rf'File "(?:[^"]*/)?{re.escape(PROGRAM_FILE)}", line (\d+)')
_REFUSED_FIX = "programs here have no network, no other processes and no files to write."


class ConfinedFailure(Exception):
    """There is no result; `error` says why."""

    def __init__(self, error: JobError) -> None:
        super().__init__(error.message)
        self.error = error


def run_confined(
    pool: SandboxPool, kind: str, payload: dict[str, Any], limits: ProcessLimits = LIMITS
) -> Any:
    """Return the result of one piece of work, parsed from JSON. Raises `ConfinedFailure`.

    A process that was ended from outside is replaced once: the program cannot have caused it.
    """
    with contextlib.suppress(ProcessEnded):
        return _run_once(pool, kind, payload, limits)
    try:
        return _run_once(pool, kind, payload, limits)
    except ProcessEnded as ended:
        message = "The process was ended from outside, twice."
        raise ConfinedFailure(
            JobError(kind="internal", message=message, fix="run it again.")
        ) from ended


def _run_once(pool: SandboxPool, kind: str, payload: dict[str, Any], limits: ProcessLimits) -> Any:
    """Return the result. Raises `ProcessEnded` only for an end that has another cause."""
    process = pool.start_process(LAB_ROLE, limits)
    try:
        request = ConfinedRequest(
            kind=kind,
            payload=payload,
            stack_dumps=StackDumps(
                wall_seconds=limits.wall_seconds * _STACK_DUMP_SHARE,
                cpu_seconds=limits.cpu_seconds * _STACK_DUMP_SHARE,
            ),
        )
        try:
            response = ConfinedResponse.from_frame(process.request(request.to_frame()))
        except InvalidFrame as error:
            reason = ExitReason(kind="protocol", detail=str(error))
            raise ConfinedFailure(_explain_end(reason, process, limits)) from error
        except ProcessEnded as ended:
            if is_judge_fault(ended.reason):
                raise
            raise ConfinedFailure(_explain_end(ended.reason, process, limits)) from ended
        return _read_response(response, process, limits)
    finally:
        process.close()


def _read_response(
    response: ConfinedResponse, process: SandboxedProcess, limits: ProcessLimits
) -> Any:
    if response.error is not None:
        raise ConfinedFailure(_job_error(response.error, process))
    try:
        return json.loads(response.result)
    except (ValueError, RecursionError) as error:
        reason = ExitReason(kind="protocol", detail="the result is not JSON")
        raise ConfinedFailure(_explain_end(reason, process, limits)) from error


def _job_error(error: ProgramError, process: SandboxedProcess) -> JobError:
    refused = process.rejected_calls
    is_refused = bool(refused) and re.search("PermissionError|OSError", error.message)
    if is_refused:
        message = f"{error.message} The sandbox refused: {', '.join(sorted(refused))}."
        return JobError(kind="refused", message=message, line=error.line, fix=_REFUSED_FIX)
    return JobError(kind=error.kind, message=error.message, line=error.line, fix=error.fix)


def _explain_end(reason: ExitReason, process: SandboxedProcess, limits: ProcessLimits) -> JobError:
    """Return how a process ended, in words, with the line that its interpreter reported last."""
    _, stack_dump = split_stack_dump(process.output)
    lines = _STACK_LINE.findall(stack_dump)
    line = int(lines[0]) if lines else None
    match reason.kind:
        case "time":
            detail = f"{limits.cpu_seconds:g} s of processor time"
            detail = reason.detail or f"{detail}, {limits.wall_seconds:g} s in total"
            return JobError(
                kind="time",
                message=f"The time limit was reached ({detail}).",
                line=line,
                fix="look for a loop that never ends, or use smaller arrays or a smaller mesh.",
            )
        case "memory":
            return JobError(
                kind="memory",
                message=f"The memory limit of {limits.memory_bytes >> 20} MB was reached.",
                line=line,
                fix="use smaller arrays or a smaller mesh.",
            )
        case "output":
            return JobError(
                kind="output",
                message=f"The program printed more than {limits.output_bytes >> 10} KB.",
                line=line,
                fix="print less.",
            )
        case "protocol":
            return JobError(
                kind="protocol", message="The process returned something else than a result."
            )
    number = exit_signal(reason)
    cause = f"signal {number}" if number else f"exit code {reason.exit_code}"
    return JobError(
        kind="crash",
        message=f"The process ended by itself ({cause}).",
        line=line,
        fix="do not end the process in the program (os._exit, os.kill).",
    )
