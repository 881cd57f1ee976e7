"""Runs inside the sandbox: does one kind of work after another, and reports errors in words.

record  program, mesh, hardware, edit -> Recording
edits   program, mesh -> the break-it edits that apply to it
advice  model and workload -> the meshes and strategies that fit, ranked
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

from shardlab.errors import LabError
from shardlab.judge.worker.stack_dumps import dump_stacks
from shardlab.sandbox.frame import MAX_BODY, read_frame, write_frame
from shardlab.server.confined.messages import (
    MAX_RESULT_BYTES,
    PROGRAM_FILE,
    ConfinedRequest,
    ConfinedResponse,
    ProgramError,
)
from shardlab.sharding.mesh import parse_mesh

Payload = dict[str, Any]


def record_program(payload: Payload) -> Any:
    from shardlab.recording.program_recording import record_source

    return record_source(
        payload["source"],
        target=payload["target"],
        mesh=payload["mesh"],
        hardware=payload["hardware"],
        edit=payload["edit"],
        findings="full",
    ).to_json()


def list_program_edits(payload: Payload) -> Any:
    from shardlab.recording.edits import list_edits

    mesh_axes = parse_mesh(payload["mesh"]).axis_names if payload["mesh"] else ()
    return {"edits": [edit.to_json() for edit in list_edits(payload["source"], mesh_axes)]}


def rank_meshes(payload: Payload) -> Any:
    from shardlab.server.plan_requests import make_advice_view

    return make_advice_view(payload)


KINDS: dict[str, Callable[[Payload], Any]] = {
    "record": record_program,
    "edits": list_program_edits,
    "advice": rank_meshes,
}


def handle_request(request: ConfinedRequest) -> ConfinedResponse:
    """Return the result of a request, or its error; nothing is raised."""
    try:
        result = json.dumps(KINDS[request.kind](request.payload), allow_nan=False).encode()
    # A program can raise anything: SystemExit, KeyboardInterrupt, classes of its own.
    except BaseException as error:
        return ConfinedResponse(error=explain_exception(error))
    if len(result) > MAX_RESULT_BYTES:
        return ConfinedResponse(
            error=ProgramError(
                kind="output",
                message=f"The result has {len(result) / 2**20:.0f} MB; "
                f"the maximum is {MAX_RESULT_BYTES >> 20} MB.",
                fix="record fewer steps, or a smaller mesh.",
            )
        )
    return ConfinedResponse(result=result)


def explain_exception(error: BaseException) -> ProgramError:
    """Return an exception in words, with the last line of the person's program in it."""
    line = program_line(error)
    if isinstance(error, LabError):
        where = f" ({error.where})" if error.where else ""
        return ProgramError(
            kind=error.code, message=f"{error.what}{where}", line=line, fix=error.fix or ""
        )
    if isinstance(error, SyntaxError):
        return ProgramError(
            kind="syntax", message=f"{type(error).__name__}: {error.msg}", line=line
        )
    if isinstance(error, MemoryError):
        return ProgramError(kind="memory", message="The memory limit was reached.", line=line)
    if isinstance(error, SystemExit):
        return ProgramError(
            kind="exit",
            message="The program ends the process (sys.exit).",
            line=line,
            fix="return a result instead.",
        )
    if line is None:  # not an error of the program, so a fault of ours
        return ProgramError(
            kind="internal",
            message=f"Something failed in shardlab itself ({type(error).__name__}).",
            fix="try another program or other options.",
        )
    text = str(error).strip()
    message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return ProgramError(kind="exception", message=message, line=line)


def program_line(error: BaseException) -> int | None:
    """Return the last line of the person's program in an exception's traceback."""
    if isinstance(error, SyntaxError) and _is_program(error.filename or ""):
        return error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if _is_program(frame.filename)]
    return lines[-1] if lines else None


def _is_program(file: str) -> bool:
    return file.rpartition("/")[2] == PROGRAM_FILE


def main(requests_fd: int, responses_fd: int) -> None:
    """Serve requests until there are no more."""
    while (frame := read_frame(requests_fd, MAX_BODY)) is not None:
        request = ConfinedRequest.from_frame(frame)
        with dump_stacks(request.stack_dumps):
            response = handle_request(request)
        sys.stdout.flush()
        write_frame(responses_fd, response.to_frame())
