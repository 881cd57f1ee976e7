"""Records a program that is given as text: a function of it, or the calls that it makes itself.

`record_source` is what a worker of the server calls. A fault of the program is part of the result,
as the recording's failure; only a request that makes no sense (an unknown edit) is raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import linecache
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import AxisType

from shardlab import __version__
from shardlab.checks.check_program import check_program
from shardlab.errors import (
    LabError,
    MeshAxesMismatch,
    Unsupported,
)
from shardlab.recording.attached_findings import FindingsDetail, place_finding
from shardlab.recording.chosen_call import FILE_NAME, choose_call
from shardlab.recording.edits import allow_unchecked, apply_edit
from shardlab.recording.printed_output import PrintedOutput
from shardlab.recording.program_sources import ProgramSources
from shardlab.recording.record_program import (
    MAX_STEPS,
    ProgramCall,
    note_replaced_mesh,
    record_call,
)
from shardlab.recording.recording import Recording, SourceFile
from shardlab.recording.step_records import RecordedFinding, RecordingFailure
from shardlab.sharding.mesh import Mesh, MeshSizes, parse_mesh
from shardlab.simulator.retarget import observe_program_meshes, retarget_programs
from shardlab.simulator.script_programs import ScriptRun, observe_programs
from shardlab.simulator.simulated_mode import simulated
from shardlab.tracing.observation import Observation, ProgramPattern
from shardlab.tracing.rejected_programs import find_rejection, full_tracebacks

_MIN_DEVICES = 8
_MAX_MESSAGE = 4000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceRequest:
    """A program as text, what to record of it, and where."""

    source: str
    target: str | None = None
    mesh: Mesh | None = None
    hardware: str | None = None
    max_steps: int = MAX_STEPS
    findings: FindingsDetail = "static"


def record_source(
    source: str,
    *,
    target: str | None = None,
    mesh: str | None = None,
    hardware: str | None = None,
    edit: str | None = None,
    max_steps: int = MAX_STEPS,
    findings: FindingsDetail = "static",
) -> Recording:
    """Return the recording of a program that is given as text.

    `target` names a function of it. Without one, the function with example arguments is recorded,
    or else what the text calls itself when it runs as `__main__`. The mesh replaces the program's
    own if it has the same axes. `edit` is the id of one of `list_edits`.
    """
    parsed = parse_mesh(mesh) if mesh else None
    request = SourceRequest(
        source=source,
        target=target,
        mesh=parsed,
        hardware=hardware,
        max_steps=max_steps,
        findings=findings,
    )
    if edit is None:
        return _record_request(request)
    names = parsed.axis_names if parsed is not None else ()
    edited = apply_edit(source, edit, names)
    recording = _record_request(dataclasses.replace(request, source=edited))
    if recording.failure is None or recording.failure.kind != "rejected":
        return recording
    unchecked = allow_unchecked(edited)
    if unchecked == edited:
        return recording
    rejection = recording.failure.message.strip().splitlines()[0][:300]
    second = _record_request(dataclasses.replace(request, source=unchecked))
    note = (
        f"JAX itself rejects this edit ({rejection.rstrip(':. ')}). The recording shows what "
        "happens with check_vma=False, which turns that check off."
    )
    return dataclasses.replace(second, notes=(note, *second.notes))


def _record_request(request: SourceRequest) -> Recording:
    output = PrintedOutput()
    try:
        with full_tracebacks():
            recording = _load_and_record(request, output)
    except (Exception, SystemExit) as error:
        recording = _failed_recording(request, error)
    return dataclasses.replace(recording, output=output.text)


def _load_and_record(request: SourceRequest, output: PrintedOutput) -> Recording:
    n_devices = max(request.mesh.n_devices if request.mesh else 0, _MIN_DEVICES)
    script_run = ScriptRun()
    notes: list[str] = []
    with simulated(n_devices), _restored_main(), observe_program_meshes() as program_meshes:
        with output.capture():
            loaded = _execute(request, script_run, notes, output)
        call = loaded.call
        if loaded.error is not None and call.is_captured:
            notes.append(_later_error_note(loaded.error))
        # A call that the text made itself has printed already.
        with output.capture(is_repeated=call.is_captured), loaded.context_mesh():
            recording = _record_on_mesh(call, request, notes)
    if request.mesh is not None and dict(recording.mesh) == dict(request.mesh.shape):
        recording = note_replaced_mesh(recording, program_meshes)
    return dataclasses.replace(recording, notes=(*recording.notes, *notes))


def _record_on_mesh(call: ProgramCall, request: SourceRequest, notes: list[str]) -> Recording:
    """Record on the requested mesh; on the program's own if it has other axes."""

    def record_on(mesh: Any) -> Recording:
        return record_call(
            dataclasses.replace(call, mesh=mesh),
            hardware=request.hardware,
            max_steps=request.max_steps,
            findings=request.findings,
        )

    if call.is_captured or request.mesh is None:
        return record_on(None)
    try:
        return record_on(request.mesh)
    except (MeshAxesMismatch, Unsupported) as error:
        notes.append(f"The program ran on its own mesh: {error.what}")
        return record_on(None)


# ------------------------------------------------------------------------------ running the text


@contextlib.contextmanager
def _restored_main() -> Iterator[None]:
    """Put the main module of this process back at the end."""
    main = sys.modules["__main__"]
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LoadedProgram:
    """The call to record of a text that has run, and the mesh that it left in context."""

    call: ProgramCall
    error: BaseException | None
    mesh: Any

    def context_mesh(self) -> contextlib.AbstractContextManager[Any]:
        """Enter the mesh that the program set, if its axes are part of the types of arrays."""
        is_explicit = AxisType.Explicit in self.mesh.axis_types
        return jax.set_mesh(self.mesh) if is_explicit else contextlib.nullcontext()


def _execute(
    request: SourceRequest, script_run: ScriptRun, notes: list[str], output: PrintedOutput
) -> _LoadedProgram:
    """Run the text as a module and choose the call, on the requested mesh if it has these axes."""

    def load() -> _LoadedProgram:
        module, error = _execute_module(request, script_run)
        # Here, because example arguments may need the mesh that the text has set.
        call = choose_call(module, script_run, request.target, error)
        return _LoadedProgram(call=call, error=error, mesh=jax.sharding.get_mesh())

    if request.mesh is None:
        return load()
    with contextlib.suppress(MeshAxesMismatch, Unsupported):
        n_devices = max(request.mesh.n_devices, _MIN_DEVICES)
        with retarget_programs(request.mesh, n_devices=n_devices):
            return load()
    script_run.programs.clear()
    output.clear()
    notes.append("The program ran on its own mesh: it has other axes than the one given.")
    return load()


def _execute_module(
    request: SourceRequest, script_run: ScriptRun
) -> tuple[types.ModuleType, BaseException | None]:
    # As `python program.py` does, so that `if __name__ == "__main__":` is true.
    module = types.ModuleType("__main__")
    module.__file__ = FILE_NAME
    # Tracebacks, inspect and the recording read the text from here: there is no file.
    lines = request.source.splitlines(keepends=True)
    linecache.cache[FILE_NAME] = (len(request.source), None, lines, FILE_NAME)
    code = compile(request.source, FILE_NAME, "exec")
    # Registered, because dataclasses and pickle look their module up.
    sys.modules["__main__"] = module
    with observe_programs(script_run, keep_values=True):
        try:
            exec(code, module.__dict__)
        except (MeshAxesMismatch, Unsupported):
            raise
        except SystemExit as end:
            if end.code and not script_run.programs:
                raise
            return module, end if end.code else None
        except Exception as error:
            if not script_run.programs:
                raise
            return module, error
    return module, None


def _later_error_note(error: BaseException) -> str:
    line = _program_line(error)
    where = f" in line {line}" if line else ""
    return f"The program ended later{where}: {type(error).__name__}: {str(error)[:300]}"


# --------------------------------------------------------------------------------------- failures


def _failed_recording(request: SourceRequest, error: BaseException) -> Recording:
    """Return a recording without steps, whose failure says what happened and where."""
    line = _program_line(error)
    message, where, fix = f"{type(error).__name__}: {error}", "", ""
    kind = "error"
    if isinstance(error, LabError):
        message, where, fix = error.what, error.where, error.fix
    elif isinstance(error, SyntaxError):
        kind, line = "syntax", error.lineno or 0
        message = f"SyntaxError: {error.msg}"
    mesh = tuple(request.mesh.shape.items()) if request.mesh else ()
    findings: tuple[RecordedFinding, ...] = ()
    pattern = find_rejection(error)
    if pattern is not None:
        kind = "rejected"
        findings = _rejection_findings(request, mesh, pattern)
        fix = findings[0].fix if findings else fix
    return Recording(
        title=request.target or "program",
        mesh=mesh,
        steps=(),
        values=(),
        sources=(SourceFile(FILE_NAME, request.source),),
        failure=RecordingFailure(
            kind=kind,
            message=message[:_MAX_MESSAGE],
            where=where,
            fix=fix,
            file=0 if line else -1,
            line=line,
        ),
        findings=findings,
        hardware=request.hardware,
        shardlab=__version__,
        jax=jax.__version__,
    )


def _program_line(error: BaseException) -> int:
    """Return the innermost line of the program in a traceback; 0 if there is none."""
    lines = [
        frame.lineno or 0
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == FILE_NAME
    ]
    return lines[-1] if lines else 0


def _rejection_findings(
    request: SourceRequest, mesh: MeshSizes, pattern: ProgramPattern
) -> tuple[RecordedFinding, ...]:
    """Return what shardlab says about JAX's message: the argument meant, and how to fix it."""
    observation = Observation(program=request.target or "program", mesh=mesh, patterns=(pattern,))
    sources = ProgramSources()
    sources.number(FILE_NAME)
    return tuple(place_finding(finding, sources) for finding in check_program(observation))
