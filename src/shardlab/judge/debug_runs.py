"""Runs cases once more for what `jax.debug.print` prints, after every verdict is decided.

The run has a process and a budget of its own. So a print that blocks, ends its process or prints
without end costs the learner the rest of the printed text, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from shardlab.judge.case_request import CaseRequest
from shardlab.judge.case_result import CaseOutcome
from shardlab.judge.debug_output import DebugOutput, DeviceOutput
from shardlab.judge.protocol.reports import ExceptionReport
from shardlab.judge.protocol.responses import DebugPrintResponse, DeviceText
from shardlab.judge.submission_budget import SubmissionBudget
from shardlab.judge.submission_source import SubmissionSource
from shardlab.judge.worker_client import RequestFailed, WorkerClient
from shardlab.sandbox.process import ProcessLimits, SandboxPool
from shardlab.sharding.mesh import Mesh

_CPU_SECONDS, _WALL_SECONDS = 10.0, 30.0
_MAX_CASES = 12
_MAX_CHARACTERS = 48_000  # of one judgement
_MAX_NOTE = 200


def select_printing_cases(outcomes: Sequence[CaseOutcome], is_example: bool) -> list[int]:
    """Return the positions of the cases to print, the most important first.

    All examples. Of hidden cases one for each part: the first that failed, otherwise the first on
    several devices.
    """
    printing = [i for i, outcome in enumerate(outcomes) if outcome.has_debug_calls]
    printing.sort(key=lambda i: (outcomes[i].passed, outcomes[i].request.mesh.n_devices == 1))
    if is_example:
        return printing[:_MAX_CASES]
    first_of_part: dict[int, int] = {}
    for position in printing:
        first_of_part.setdefault(outcomes[position].request.case.part.number, position)
    return list(first_of_part.values())[:_MAX_CASES]


def run_debug_prints(
    pool: SandboxPool,
    source: SubmissionSource,
    limits: ProcessLimits,
    requests: Sequence[CaseRequest],
    example_of: Callable[[CaseRequest], CaseRequest] | None,
) -> list[DebugOutput | None]:
    """Return what is printed in each case, None for a case in which nothing is.

    The inputs of a hidden case stay hidden: `example_of` returns a case to print in its place.
    """
    limits = replace(
        limits,
        cpu_seconds=min(limits.cpu_seconds, _CPU_SECONDS),
        wall_seconds=min(limits.wall_seconds, _WALL_SECONDS),
    )
    client = WorkerClient(pool, "tracer", SubmissionBudget(limits), source)
    outputs: list[DebugOutput | None] = []
    n_left = _MAX_CHARACTERS
    try:
        for request in requests:
            if client.has_given_up or n_left <= 0:
                break
            shown = example_of(request) if example_of else request
            output = replace(_print_case(client, shown), has_example_inputs=example_of is not None)
            if output.n_characters > n_left:
                output = output.truncate(n_left // len(output.devices))
            n_left -= output.n_characters
            outputs.append(output if output.devices or output.note else None)
    finally:
        client.close()
    return outputs + [None] * (len(requests) - len(outputs))


def _print_case(client: WorkerClient, request: CaseRequest) -> DebugOutput:
    mesh = request.case.mesh
    mesh_text = str(mesh) if mesh else ""
    try:
        response = client.request(request.debug_print_request())
    except RequestFailed as failure:  # `LoadFailed` is one
        note = f"No more is printed: {failure.verdict.what}"
        return DebugOutput(mesh=mesh_text, note=note[:_MAX_NOTE])
    return DebugOutput(
        mesh=mesh_text,
        devices=_read_devices(response, mesh),
        n_devices=max(response.n_devices, len(response.devices)),
        note=_error_note(response.error),
    )


def _read_devices(response: DebugPrintResponse, mesh: Mesh | None) -> tuple[DeviceOutput, ...]:
    """Return the texts in the order of the devices; the worker's order is the submission's."""
    positions = {} if mesh is None else _device_positions(mesh)
    order = sorted(response.devices, key=lambda text: _sort_key(text, positions))
    return tuple(
        DeviceOutput(
            device=positions[text.place][1] if text.place in positions else None,
            place=text.place,
            text=text.text,
            is_truncated=text.is_truncated,
        )
        for text in order
    )


def _sort_key(text: DeviceText, positions: Mapping[str, tuple[int, int]]) -> tuple[bool, int, str]:
    position, _ = positions.get(text.place, (0, 0))
    return bool(text.place), position, text.place


def _device_positions(mesh: Mesh) -> dict[str, tuple[int, int]]:
    """Return the position in the mesh and the device at each coordinate, by its text."""
    places = {}
    for position, device in enumerate(mesh.devices):
        steps = zip(mesh.axis_names, mesh.coordinate(device), strict=True)
        place = ",".join(f"{name}={step}" for name, step in steps)
        places[place] = (position, device)
    return places


def _error_note(error: ExceptionReport | None) -> str:
    if error is None:
        return ""
    # The message of a callback that raised inside a loop is a traceback; its last line says what.
    lines = [line.strip() for line in error.message.splitlines() if line.strip()]
    reason = lines[-1] if lines else ""
    if len(lines) <= 1:
        reason = f"{error.exception_type}: {reason}"
    return f"No more is printed, because the program raised {reason}"[:_MAX_NOTE]
