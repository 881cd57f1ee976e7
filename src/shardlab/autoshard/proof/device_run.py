"""Whether the sharded program computes what the unsharded one does: on real host devices.

Why not by simulation: shardlab's simulator evaluates a jit without shard_map on one device and
takes the shardings of its outputs from Shardy. Its values are the unsharded ones by construction,
so comparing them would prove nothing about the partitioned program. Here the program is exported
with its in_shardings, and a child process really runs it on forced host devices: XLA partitions it,
every device computes its shard, and each copy of each shard is compared with the same program on
one device. That finds what the simulator cannot: an error of the partitioner, copies that differ,
and a program whose result depends on its sharding (a shard_map inside, `axis_index`).

The mesh is scaled down to what a CPU can run, and the shapes where the program can be traced with
smaller ones. What carries over to the full mesh is the program and its specs, not a proof for
every size: a partitioner error that needs more than 3 devices on a mesh axis is not found.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shardlab._jax.compile_process import run_compiler
from shardlab._text.units import count_text
from shardlab.analysis.run_arguments import error_summary
from shardlab.autoshard.proof.device_messages import (
    DeviceRunResult,
    OutputComparison,
)
from shardlab.autoshard.proof.exported_programs import write_programs
from shardlab.autoshard.proof.flat_program import FlatProgram
from shardlab.autoshard.proof.proof_record import ValueProof
from shardlab.autoshard.proof.scaled_program import (
    NotScaled,
    ScaledProgram,
    scale_program,
)
from shardlab.errors import CompileFailed, CompileTimeout
from shardlab.sharding.mesh import MeshSizes, mesh_text
from shardlab.sharding.spec import Spec

_WORKER_MODULE = "shardlab.autoshard.proof.device_worker"


def prove_values(
    program: FlatProgram,
    sizes: MeshSizes,
    specs: Sequence[Spec],
    limit_s: float,
    *,
    n_constraints: int = 0,
) -> ValueProof:
    """Run the program sharded and unsharded, and compare all outputs on every device.

    Constraints that the user has not written yet are not applied; the sentence says so.
    """
    try:
        scaled = scale_program(program.function, program.avals, sizes, specs)
    except NotScaled as reason:
        return ValueProof(verdict="not proven", sentence=f"not simulated: {reason}.")
    try:
        result, is_widened = _run_on_devices(program, scaled, specs, limit_s)
    except CompileTimeout:
        return _not_run(scaled, f"it did not finish in {limit_s:g} s and was ended")
    except CompileFailed as error:
        return _not_run(scaled, f"the process ended: {error.what}")
    except Exception as error:  # tracing for the mesh runs the user's code and all checks of JAX
        return _not_run(scaled, f"JAX rejects it there: {error_summary(error)}")
    if is_widened:
        inputs = f"{result.inputs}, narrow floats as float32"
        result = dataclasses.replace(result, inputs=inputs)
    record = _value_proof(program, scaled, result)
    if not n_constraints:
        return record
    note = f" It ran without the {count_text(n_constraints, 'constraint')} inside of the program."
    return dataclasses.replace(record, sentence=record.sentence + note)


def _not_run(scaled: ScaledProgram, reason: str) -> ValueProof:
    return ValueProof(
        verdict="not proven",
        sentence=f"not simulated on {mesh_text(scaled.mesh)}: {reason}.",
        mesh=scaled.mesh,
    )


def _run_on_devices(
    program: FlatProgram, scaled: ScaledProgram, specs: Sequence[Spec], limit_s: float
) -> tuple[DeviceRunResult, bool]:
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        path = Path(folder)
        is_widened = write_programs(program, scaled, specs, path)
        command = [sys.executable, "-P", "-m", _WORKER_MODULE, folder]
        response = run_compiler(command, path, {"JAX_PLATFORMS": "cpu"}, program.name, limit_s)
    return DeviceRunResult.parse(response), is_widened


# -------------------------------------------------------------------------------- the record


def _value_proof(
    program: FlatProgram, scaled: ScaledProgram, result: DeviceRunResult
) -> ValueProof:
    if result.failed_on == "the mesh":
        return ValueProof(
            verdict="disproven",
            sentence=f"it runs on one device and fails on {mesh_text(scaled.mesh)}: "
            f"{result.failure}.",
            mesh=scaled.mesh,
        )
    if result.failed_on:
        return _not_run(scaled, f"it fails on one device too: {result.failure}")
    names = program.output_names
    pairs = list(zip(names, result.outputs, strict=True))
    if not pairs:
        return _not_run(scaled, "the program returns no arrays")
    wrong = [(name, output) for name, output in pairs if not output.agrees]
    worst_name, worst = max(wrong or pairs, key=lambda pair: _relative_error(pair[1]))
    record = ValueProof(
        verdict="disproven",
        sentence=f"{count_text(len(wrong), 'output')} of {len(pairs)} differ between one device "
        f"and {mesh_text(scaled.mesh)}, run on host devices: {worst_name or 'the output'} by "
        f"{worst.error:.3g} on device {worst.device}, where rounding explains "
        f"{worst.tolerance:.3g}.",
        mesh=scaled.mesh,
        n_outputs=len(pairs),
        n_elements=sum(output.n_elements for _, output in pairs),
        inputs=result.inputs,
        worst_output=worst_name,
        worst_error=worst.error,
        worst_tolerance=worst.tolerance,
    )
    if wrong:
        return record
    return _agreeing(record, scaled, pairs)


def _agreeing(
    record: ValueProof, scaled: ScaledProgram, pairs: Sequence[tuple[str, OutputComparison]]
) -> ValueProof:
    shapes = "the original shapes" if scaled.has_original_shapes else "smaller shapes"
    run = f"run on {mesh_text(scaled.mesh)} host devices with {shapes} ({record.inputs})"
    # An output without a finite element was compared NaN with NaN.
    undecided = [name for name, output in pairs if output.n_not_finite and not output.n_elements]
    if undecided:
        sentence = (
            f"{count_text(len(undecided), 'output')} of {len(pairs)} have no finite element, so "
            f"nothing is known about them ({undecided[0] or 'the output'}); the others equal the "
            f"unsharded ones, {run}."
        )
        return dataclasses.replace(record, verdict="not proven", sentence=sentence)
    n_not_finite = sum(output.n_not_finite for _, output in pairs)
    rest = f"; {n_not_finite:,} elements are not finite on either" if n_not_finite else ""
    equal = (
        "the output equals the unsharded one"
        if len(pairs) == 1
        else f"all {len(pairs)} outputs equal the unsharded ones"
    )
    sentence = (
        f"{equal} on every device, {run}: "
        f"{record.n_elements:,} finite elements{rest}; largest error {record.worst_error:.3g} of "
        f"{record.worst_tolerance:.3g} allowed."
    )
    return dataclasses.replace(record, verdict="proven", sentence=sentence)


def _relative_error(output: OutputComparison) -> float:
    return output.error / output.tolerance if output.tolerance else output.error
