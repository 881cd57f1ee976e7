"""`record`: run a program by simulation, equation by equation, and record every device's values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from shardlab import __version__, _jax
from shardlab._jax import device_hooks
from shardlab._jax.pending_deadlock import raise_pending_deadlock
from shardlab._text.units import bytes_text
from shardlab.analysis.run_arguments import fill_arguments, is_array
from shardlab.checks.rejection_findings import raise_if_rejected
from shardlab.errors import Deadlock, NothingToRecord, TooLargeToRecord
from shardlab.hardware.chips import parse_hardware
from shardlab.hardware.collective_time import CollectiveTimer
from shardlab.recording.attached_findings import MAX_COMPARED_BYTES, FindingsDetail, find_problems
from shardlab.recording.finish_recording import finish_recording
from shardlab.recording.propagated_shardings import propagate_shardings
from shardlab.recording.recorder import OnEquation, Recorder
from shardlab.recording.recording import NamedValue, Recording
from shardlab.recording.residuals import find_residuals
from shardlab.recording.step_records import RecordingFailure
from shardlab.sharding.mesh import MeshSizes, mesh_text
from shardlab.simulator.interpreter.evaluate import evaluate_jaxpr
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.step_observer import observe_steps
from shardlab.simulator.retarget import observe_program_meshes
from shardlab.tracing.observation import Observation
from shardlab.tracing.rejected_programs import find_rejection, full_tracebacks
from shardlab.tracing.stage import StagedProgram, program_name, stage_program

MAX_STEPS = 2000
# A recording computes every value eagerly and holds all of them: a few times the arguments.
MAX_ARGUMENT_BYTES = 2**30
DEFAULT_HARDWARE = "tpu-v5e"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramCall:
    """One call of a function, on a mesh or on the program's own."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    mesh: Any = None
    title: str = ""
    names: tuple[str, ...] = ()  # of the arrays, if the function does not name them
    is_captured: bool = False  # a call that a script made itself, on its own mesh


def record(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    hardware: str | None = None,
    max_steps: int = MAX_STEPS,
    findings: FindingsDetail = "static",
) -> Recording:
    """Return every step of `f(*args)` on a virtual mesh, with the values of every device.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> total = jax.shard_map(
    ...     lambda x: jax.lax.psum(x.sum(), "data"), in_specs=P("data"), out_specs=P()
    ... )
    >>> recording = record(total, jax.numpy.arange(8.0), mesh="data=4")
    >>> [step.op for step in recording.steps if step.region == "body"]
    ['enter shard_map', 'reduce_sum', 'psum_invariant']

    An argument that is only a shape (`"f32[8,6]"`) gets random values. `hardware` names the chip
    for times, by default tpu-v5e. `findings` are those of `check`: "static" ones, "full" ones,
    which need further runs, or "none". A deadlock ends the recording and is its `failure`. A
    program that JAX rejects raises `ProgramRejected`, as `trace` does.
    """
    call = ProgramCall(function=f, args=args, mesh=mesh, title=program_name(f))
    try:
        with full_tracebacks(), observe_program_meshes() as program_meshes:
            staged = stage_program(f, args, mesh)
    except Exception as error:
        pattern = find_rejection(error, f)
        if pattern is not None:
            raise_if_rejected(Observation(program=call.title, mesh=(), patterns=(pattern,)))
        raise
    recording = record_staged(
        staged, call, hardware=hardware, max_steps=max_steps, findings=findings
    )
    return note_replaced_mesh(recording, program_meshes)


def note_replaced_mesh(recording: Recording, program_meshes: Sequence[Any]) -> Recording:
    """Return the recording with the mesh that the program builds, if it ran on another one."""
    used = dict(recording.mesh)
    same_axes = (dict(mesh.shape) for mesh in program_meshes if set(mesh.axis_names) == set(used))
    # Only the first is the program's own: the comparison with one device runs it again later.
    sizes = next(same_axes, used)
    if sizes == used:
        return recording
    note = (
        f"The program builds the mesh {mesh_text(sizes.items())} and ran on the mesh "
        f"given, {mesh_text(recording.mesh)}."
    )
    return dataclasses.replace(
        recording, program_mesh=tuple(sizes.items()), notes=(note, *recording.notes)
    )


def record_call(
    call: ProgramCall,
    *,
    hardware: str | None = None,
    max_steps: int = MAX_STEPS,
    findings: FindingsDetail = "static",
) -> Recording:
    """Stage one call on its mesh, evaluate it eagerly and record it."""
    staged = stage_program(call.function, call.args, call.mesh)
    return record_staged(staged, call, hardware=hardware, max_steps=max_steps, findings=findings)


def record_staged(
    staged: StagedProgram,
    call: ProgramCall,
    *,
    hardware: str | None = None,
    max_steps: int = MAX_STEPS,
    findings: FindingsDetail = "static",
    on_equation: OnEquation | None = None,
) -> Recording:
    """Evaluate a staged call eagerly and record it."""
    if len(call.names) == len(staged.names):
        # The function of a captured call takes `*args`; findings name the person's parameters.
        staged = dataclasses.replace(staged, names=call.names)
    chip = parse_hardware(hardware or DEFAULT_HARDWARE)
    sizes = _mesh_sizes(staged)
    recorder = Recorder(
        sizes,
        timer=CollectiveTimer(hardware=chip, mesh=sizes, dcn=(), efficiency=1.0),
        max_steps=max_steps,
        on_equation=on_equation,
    )
    recorder.shardings = propagate_shardings(staged)
    run = _run(staged, recorder, call)
    recording = dataclasses.replace(
        finish_recording(recorder, chip),
        title=call.title or staged.program,
        inputs=run.inputs,
        outputs=run.outputs,
        failure=run.failure,
        shardlab=__version__,
        jax=jax.__version__,
    )
    if findings == "full" and _is_large(staged, recording):
        findings = "static"
    jax.effects_barrier()  # what this run prints comes before what the checks do
    problems, notes = find_problems(call.function, call.args, staged, findings, recorder.sources)
    return dataclasses.replace(
        recording,
        findings=problems,
        notes=(*recording.notes, *notes),
        sources=recorder.sources.files,  # the findings may be in files that no step is in
    )


def _is_large(staged: StagedProgram, recording: Recording) -> bool:
    """Return whether comparing the run with others would take much longer than the recording."""
    inner, _ = _jax.open_jaxpr(staged.jaxpr)
    return recording.truncated is not None or _argument_bytes(inner) > MAX_COMPARED_BYTES


@dataclasses.dataclass(kw_only=True)
class _Run:
    inputs: tuple[NamedValue, ...] = ()
    outputs: tuple[NamedValue, ...] = ()
    failure: RecordingFailure | None = None


def _mesh_sizes(staged: StagedProgram) -> MeshSizes:
    if staged.sizes:
        return staged.sizes
    meshes = [mesh for mesh in staged.meshes if not mesh.empty]
    if not meshes:
        raise NothingToRecord(
            "The program has no mesh: neither a shard_map nor a sharding.",
            where=staged.program,
            fix="record a function that calls jax.shard_map, or pass mesh='data=8'.",
        )
    largest = max(meshes, key=lambda mesh: (len(mesh.axis_names), mesh.size))
    return tuple(largest.shape.items())


def _run(staged: StagedProgram, recorder: Recorder, call: ProgramCall) -> _Run:
    """Evaluate the program on the one real device, with the recorder as observer."""
    closed = staged.jaxpr
    inner, _ = _jax.open_jaxpr(closed)
    recorder.hidden_outputs = find_residuals(inner)
    _check_size(inner, staged.program)
    arrays = _input_arrays(call.args, inner)
    names = call.names or staged.names
    if len(names) != len(arrays):
        names = tuple(f"argument {i}" for i in range(len(arrays)))
    axes, run = MeshAxes(), _Run()
    input_entries = dict(enumerate(recorder.shardings.inputs))
    try:
        with device_hooks.use_real_jax(), _jax.no_mesh(), raise_pending_deadlock():
            ins: list[StackedArray] = []
            for name, array, var in zip(names, arrays, inner.invars, strict=True):
                entries = input_entries.get(len(ins))
                observed = recorder.add_global(StackedArray(array), var.aval, entries, name=name)
                ins.append(observed)
                run.inputs = (*run.inputs, NamedValue(name, observed.value_id))
            with observe_steps(recorder):
                outs = evaluate_jaxpr(axes, closed, ins)
            paths = _jax.result_paths(closed) or tuple(f"[{i}]" for i in range(len(outs)))
            run.outputs = tuple(
                NamedValue(path.removeprefix("result"), recorder.value_id(out, atom.aval, axes))
                for path, out, atom in zip(paths, outs, inner.outvars, strict=True)
            )
    except Deadlock as error:
        run.failure = _deadlock_failure(recorder, error)
    return run


def _check_size(jaxpr: Any, program: str) -> None:
    """Raise `TooLargeToRecord` before anything is allocated."""
    n_bytes = _argument_bytes(jaxpr)
    if n_bytes > MAX_ARGUMENT_BYTES:
        raise TooLargeToRecord(
            f"The arguments have {bytes_text(n_bytes)}; a recording computes every value and "
            f"takes at most {bytes_text(MAX_ARGUMENT_BYTES)} of arguments.",
            where=program,
            fix="record it with smaller shapes, which shows the same steps; `shardlab trace` "
            "takes shapes of any size, because it computes no value.",
        )


def _argument_bytes(jaxpr: Any) -> int:
    return sum(var.aval.size * getattr(var.aval.dtype, "itemsize", 8) for var in jaxpr.invars)


def _input_arrays(args: Sequence[Any], jaxpr: Any) -> list[Any]:
    """Return the value of each input of the program; what has only a shape gets random ones."""
    with device_hooks.use_real_jax(), _jax.no_mesh():
        leaves = jax.tree.leaves(fill_arguments(args))
        arrays = [leaf for leaf in leaves if is_array(leaf)]
        # A jit of the user also traces numbers; in any other function these are constants.
        if len(arrays) != len(jaxpr.invars):
            arrays = leaves
        return [
            array if _is_key(array) else jnp.asarray(array, var.aval.dtype)
            for array, var in zip(arrays, jaxpr.invars, strict=True)
        ]


def _is_key(array: Any) -> bool:
    return hasattr(array, "dtype") and _jax.is_extended(array.dtype)


def _deadlock_failure(recorder: Recorder, error: Deadlock) -> RecordingFailure:
    frames = recorder.steps[-1].frames if recorder.steps else ()
    file, line = frames[0][:2] if frames else (-1, 0)
    return RecordingFailure(
        kind="deadlock",
        message=error.what,
        where=error.where,
        fix=error.fix,
        file=file,
        line=line,
    )
