"""`record`: run a program by simulation, equation by equation, and record every device's values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardlab import __version__, _jax
from shardlab._jax import device_hooks
from shardlab._jax.pending_deadlock import raise_pending_deadlock
from shardlab.analysis.run_arguments import fill_arguments
from shardlab.errors import Deadlock, NothingToRecord
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.hardware.collective_time import CollectiveTimer
from shardlab.recording.finish_recording import finish_recording
from shardlab.recording.recorder import OnValue, Recorder
from shardlab.recording.recording import NamedValue, Recording
from shardlab.recording.residuals import find_residuals
from shardlab.recording.step_records import RecordingFailure
from shardlab.sharding.mesh import MeshSizes
from shardlab.simulator.interpreter.evaluate import evaluate_jaxpr
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray
from shardlab.simulator.interpreter.step_observer import observe_steps
from shardlab.tracing.stage import StagedProgram, argument_names, program_name, stage_program

MAX_STEPS = 2000
DEFAULT_HARDWARE = "tpu-v5e"


def record(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    hardware: str | None = None,
    max_steps: int = MAX_STEPS,
    findings: bool = False,
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
    """
    return record_program(
        f, args, mesh, hardware=hardware, max_steps=max_steps, with_findings=findings
    )


def record_program(
    f: Callable[..., Any],
    args: Sequence[Any],
    mesh: Any,
    *,
    hardware: str | None = None,
    max_steps: int = MAX_STEPS,
    with_findings: bool = False,
    on_value: OnValue | None = None,
) -> Recording:
    """Stage the program on the mesh, evaluate it eagerly and record it."""
    chip = parse_hardware(hardware or DEFAULT_HARDWARE)
    with _jax.no_mesh():
        filled = fill_arguments(args)
    staged = stage_program(f, filled, mesh)
    sizes = _mesh_sizes(staged)
    recorder = Recorder(
        sizes,
        timer=CollectiveTimer(hardware=chip, mesh=sizes, dcn=(), efficiency=1.0),
        max_steps=max_steps,
        on_value=on_value,
    )
    run = _run(staged, recorder, filled)
    recording = finish_recording(recorder, chip)
    return dataclasses.replace(
        recording,
        title=program_name(f),
        inputs=run.inputs,
        outputs=run.outputs,
        failure=run.failure,
        shardlab=__version__,
        jax=jax.__version__,
    )


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


def _run(staged: StagedProgram, recorder: Recorder, args: Sequence[Any]) -> _Run:
    """Evaluate the program on the one real device, with the recorder as observer."""
    closed = staged.jaxpr
    inner, _ = _jax.open_jaxpr(closed)
    recorder.hidden_outputs = find_residuals(inner)
    run = _Run()
    arrays = [leaf for leaf in jax.tree.leaves(tuple(args)) if _is_array(leaf)]
    names = staged.names or tuple(f"argument {i}" for i in range(len(arrays)))
    axes = MeshAxes()
    with device_hooks.use_real_jax(), _jax.no_mesh(), raise_pending_deadlock():
        ins: list[StackedArray] = []
        inputs = []
        for name, array, var in zip(names, arrays, inner.invars, strict=True):
            observed = recorder.add_input(StackedArray(array), var.aval, axes, name)
            ins.append(observed)
            inputs.append(NamedValue(name, observed.value_id))
        run.inputs = tuple(inputs)
        try:
            with observe_steps(recorder):
                outs = evaluate_jaxpr(axes, closed, ins)
        except Deadlock as error:
            run.failure = _deadlock_failure(recorder, error)
            return run
        paths = _jax.result_paths(closed) or tuple(str(i) for i in range(len(outs)))
        run.outputs = tuple(
            NamedValue(path.removeprefix("result"), recorder.value_id(out, var.aval, axes))
            for path, out, var in zip(paths, outs, inner.outvars, strict=True)
        )
    return run


def _is_array(leaf: Any) -> bool:
    from shardlab.analysis.run_arguments import is_array

    return is_array(leaf)


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


__all__ = [
    "DEFAULT_HARDWARE",
    "MAX_STEPS",
    "Hardware",
    "argument_names",
    "record",
    "record_program",
]
