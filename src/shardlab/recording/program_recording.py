"""Records a program that is given as text: a function of it, or the calls that it makes itself.

`record_source` is what a worker of the server calls. A fault of the program is part of the result,
as the recording's failure; only a request that makes no sense (an unknown edit) is raised.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import linecache
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import jax

from shardlab import __version__
from shardlab._text.nearest import nearest_name
from shardlab.checks.check_program import check_program
from shardlab.errors import (
    LabError,
    MeshAxesMismatch,
    MissingArguments,
    NothingToRecord,
    UnknownFunction,
    Unsupported,
)
from shardlab.recording.attached_findings import FindingsDetail, place_finding
from shardlab.recording.edits import allow_unchecked, apply_edit
from shardlab.recording.printed_output import PrintedOutput
from shardlab.recording.program_sources import ProgramSources
from shardlab.recording.record_program import MAX_STEPS, ProgramCall, record_call
from shardlab.recording.recording import Recording, SourceFile
from shardlab.recording.script_recording import captured_call
from shardlab.recording.step_records import RecordedFinding, RecordingFailure
from shardlab.sharding.mesh import Mesh, MeshSizes, parse_mesh
from shardlab.simulator.retarget import retarget_programs
from shardlab.simulator.script_programs import ScriptRun, observe_programs
from shardlab.simulator.simulated_mode import simulated
from shardlab.tracing.observation import Observation, ProgramPattern
from shardlab.tracing.rejected_programs import find_rejection, full_tracebacks
from shardlab.tracing.stage import program_name

FILE_NAME = "program.py"
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

    `target` names a function of it. Without one the program's own calls are recorded; a program
    that makes none is searched for `step`, `main`, or a function with example arguments. The mesh
    replaces the program's own if it has the same axes. `edit` is the id of one of `list_edits`.
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
    with simulated(n_devices):
        with output.capture():
            module, error = _execute(request, script_run, notes, output)
            call = _choose_call(request, module, script_run, error)
        # A call that the text made itself has printed already.
        with output.capture(is_repeated=call.is_captured):
            recording = _record_on_mesh(call, request, notes)
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


def _execute(
    request: SourceRequest, script_run: ScriptRun, notes: list[str], output: PrintedOutput
) -> tuple[types.ModuleType, BaseException | None]:
    """Run the text as a module; its exception comes back if it called a program before."""
    if request.mesh is None:
        return _execute_module(request, script_run)
    with contextlib.suppress(MeshAxesMismatch, Unsupported):
        n_devices = max(request.mesh.n_devices, _MIN_DEVICES)
        with retarget_programs(request.mesh, n_devices=n_devices):
            return _execute_module(request, script_run)
    script_run.programs.clear()
    output.clear()
    notes.append("The program ran on its own mesh: it has other axes than the one given.")
    return _execute_module(request, script_run)


def _execute_module(
    request: SourceRequest, script_run: ScriptRun
) -> tuple[types.ModuleType, BaseException | None]:
    module = types.ModuleType("program")
    module.__file__ = FILE_NAME
    # Tracebacks, inspect and the recording read the text from here: there is no file.
    lines = request.source.splitlines(keepends=True)
    linecache.cache[FILE_NAME] = (len(request.source), None, lines, FILE_NAME)
    # Registered, because dataclasses and pickle look their module up.
    sys.modules["program"] = module
    code = compile(request.source, FILE_NAME, "exec")
    with observe_programs(script_run, keep_values=True):
        try:
            exec(code, module.__dict__)
        except (MeshAxesMismatch, Unsupported):
            raise
        except (Exception, SystemExit) as error:
            if not script_run.programs:
                raise
            return module, error
    return module, None


# -------------------------------------------------------------------------- what is to be recorded


def _choose_call(
    request: SourceRequest,
    module: types.ModuleType,
    script_run: ScriptRun,
    error: BaseException | None,
) -> ProgramCall:
    programs = {program.name: program for program in script_run.programs}
    if request.target:
        if request.target in programs and not _has_arguments(module, request.target):
            return captured_call(script_run.programs, request.target)
        return _function_call(module, request.target)
    if programs:
        return captured_call(script_run.programs)
    if error is not None:
        raise error
    name = _default_target(module)
    if name is None:
        raise NothingToRecord(
            "The program calls no shard_map and no jit with shardings.",
            where=FILE_NAME,
            fix="call the program at the end of the text, or add a function step_args() that "
            "returns the arguments of step().",
        )
    return _function_call(module, name)


def _own_functions(module: types.ModuleType) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and not isinstance(value, type)
        and getattr(value, "__module__", "") == module.__name__
    }


def _default_target(module: types.ModuleType) -> str | None:
    functions = _own_functions(module)
    with_arguments = [name for name in functions if f"{name}_args" in vars(module)]
    for name in ("step", "train_step", "main"):
        if name in functions and (name in with_arguments or hasattr(module, "example_args")):
            return name
    if with_arguments:
        return with_arguments[-1]
    candidates = [
        name for name in functions if not name.endswith("_args") and name != "example_args"
    ]
    if hasattr(module, "example_args") and candidates:
        return candidates[-1]
    callable_alone = [name for name in candidates if not _required_parameters(functions[name])]
    return callable_alone[-1] if callable_alone else None


def _has_arguments(module: types.ModuleType, name: str) -> bool:
    return hasattr(module, f"{name}_args") or hasattr(module, "example_args")


def _function_call(module: types.ModuleType, name: str) -> ProgramCall:
    function = getattr(module, name, None)
    if not callable(function):
        match = nearest_name(name, list(_own_functions(module)))
        raise UnknownFunction(
            f"The program has no function {name[:60]!r}.",
            where=FILE_NAME,
            fix=f"Did you mean {match!r}?" if match else "name one of its functions.",
        )
    return ProgramCall(
        function=function,
        args=_example_arguments(module, name, function),
        mesh=None,
        title=program_name(function),
    )


def _example_arguments(
    module: types.ModuleType, name: str, function: Callable[..., Any]
) -> tuple[Any, ...]:
    """Return the arguments by the rules of `shardlab trace file.py:function`."""
    for source_name in (f"{name}_args", "example_args"):
        if hasattr(module, source_name):
            source = getattr(module, source_name)
            values = source() if callable(source) else source
            return tuple(values) if isinstance(values, (tuple, list)) else (values,)
    required = _required_parameters(function)
    if required:
        raise MissingArguments(
            f"{name!r} needs arguments ({', '.join(required)}), and the program has none.",
            where=FILE_NAME,
            fix=f"add a function {name}_args() that returns a tuple of them.",
        )
    return ()


def _required_parameters(function: Callable[..., Any]) -> list[str]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind in positional
        and parameter.default is parameter.empty
        and parameter.name != "mesh"
    ]


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
