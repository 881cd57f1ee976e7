"""What XLA makes of the program on a mesh that exists only for the compiler: two proofs.

Without constraints the program takes JAX's own way to the compiler, which shares nothing with the
search. With constraints there is no such way, because the user has not written them yet: the module
that the search lowered is compiled, with the shardings of arguments and constraints and before any
pass of Shardy ran in this process.
"""

from __future__ import annotations

import dataclasses
import math

import jax
from jax.sharding import NamedSharding

from shardlab._jax.lowered import jaxlib_version, module_input
from shardlab._jax.module_source import shape_name
from shardlab._jax.partitioned_program import InsertedCall
from shardlab._jax.shardy_program import PartitioningFailed, ShardyProgram, lower_once
from shardlab._text.units import bytes_text
from shardlab.analysis.run_arguments import error_summary
from shardlab.autoshard.proof.collective_comparison import compare_collectives
from shardlab.autoshard.proof.flat_program import donated_leaves, jit_with_state
from shardlab.autoshard.proof.proof_record import CollectiveProof, MemoryProof, Verdict
from shardlab.autoshard.proof.proof_request import ProofRequest, spec_axes
from shardlab.autoshard.proof.scaled_program import partition_spec
from shardlab.errors import CompileError
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.compiler.inserted_collectives import (
    CompiledObservation,
    observe_compiled,
    read_compiled_program,
)
from shardlab.tracing.compiler.tpu_topology import observe_on_topology
from shardlab.tracing.compiler.xla_process import compile_for_devices
from shardlab.tracing.observation import Memory
from shardlab.tracing.stage import LoweringFailed, StagedProgram, stage_program


class _UnknownConstraint(Exception):
    """A constraint belongs to no place in the program."""


def prove_by_compiler(request: ProofRequest) -> tuple[CollectiveProof, MemoryProof]:
    """Compile once for both proofs."""
    staged: StagedProgram | None = None
    try:
        if request.options.constraints:
            lowered = _lower(request)
            observed = _compile_with_constraints(request, lowered)
        else:
            staged = _stage(request)
            observed = observe_compiled(staged, request.options.compile_limit_s)
            lowered = None
    except CompileError as error:
        return _not_compiled(request, error.what)
    except LoweringFailed as error:
        return _not_compiled(request, str(error.__cause__ or error))
    except Exception as error:  # tracing runs the user's function
        return _not_compiled(request, error_summary(error))
    claimed = request.options.collectives
    if claimed is None:
        claimed = _shardy_collectives(request, lowered or _lower(request))
    collectives = compare_collectives(claimed, observed.calls, request.sizes)
    return collectives, _memory_proof(request, staged, observed)


def _not_compiled(request: ProofRequest, reason: str) -> tuple[CollectiveProof, MemoryProof]:
    sentence = f"the program was not compiled for the mesh: {reason}"
    return (
        CollectiveProof(verdict="not proven", sentence=sentence),
        MemoryProof(
            verdict="not proven",
            sentence=sentence,
            planned_argument_bytes=request.planned_bytes,
            limit_bytes=request.options.memory_limit,
        ),
    )


# ------------------------------------------------------------------------------ the two ways


def _stage(request: ProofRequest) -> StagedProgram:
    program, sizes = request.program, request.sizes
    mesh = virtual_mesh(sizes)
    shardings = [NamedSharding(mesh, partition_spec(spec)) for spec in request.specs]
    structs = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(program.avals, shardings, strict=True)
    ]
    donated = {*donated_leaves(request.f, request.args, sizes), *program.state.values()}
    if program.state:  # the number of results is known only once it was traced
        stage_program(jax.jit(program.fresh_function()), program.avals, sizes)
    jitted = jit_with_state(program, program.fresh_function(), shardings, sorted(donated))
    return stage_program(jitted, structs, sizes)


def _lower(request: ProofRequest) -> ShardyProgram:
    function = request.program.fresh_function()
    return lower_once(function, request.program.avals, request.mesh, request.program.state)


def _constraint_axes(request: ProofRequest) -> dict[str, tuple[tuple[str, ...], ...]]:
    return {
        shape_name(item.source, item.shape): spec_axes(item.spec, len(item.shape))
        for item in request.options.constraints
    }


def _compile_with_constraints(request: ProofRequest, lowered: ShardyProgram) -> CompiledObservation:
    constraints = _constraint_axes(request)
    unknown = sorted(set(constraints) - {point.name for point in lowered.points})
    if unknown:
        raise _UnknownConstraint(f"the program has no place for a constraint at {unknown[0]}.")
    module = lowered.annotated_module(request.argument_axes, constraints)
    is_free = [index not in request.program.state for index in range(len(lowered.results))]
    program = module_input(module, math.prod(request.sizes.values()), is_free)
    compiled = compile_for_devices(program, request.program.name, request.options.compile_limit_s)
    compiler = f"CPU (jaxlib {jaxlib_version()})"
    observed = read_compiled_program(program, compiled, virtual_mesh(request.sizes), compiler)
    # The search lowers without donations; the state has the memory of what it replaces.
    alias_bytes = sum(request.shard_bytes[index] for index in request.program.state.values())
    return observed._replace(memory=dataclasses.replace(observed.memory, alias_bytes=alias_bytes))


def _shardy_collectives(
    request: ProofRequest, lowered: ShardyProgram
) -> tuple[InsertedCall, ...] | None:
    try:
        partitioned = lowered.partition(request.argument_axes, _constraint_axes(request))
    except PartitioningFailed:
        return None
    return partitioned.collectives


# ------------------------------------------------------------------------------------ memory


def _memory_proof(
    request: ProofRequest, staged: StagedProgram | None, observed: CompiledObservation
) -> MemoryProof:
    memory, limit = observed.memory, request.options.memory_limit
    tpu, tpu_note = _observe_tpu(request, staged)
    held = memory.argument_bytes + memory.output_bytes - memory.alias_bytes
    total = held if tpu is None else _total_bytes(tpu)
    verdict, sentence = _judge_memory(memory, request.planned_bytes, total, limit, bool(tpu))
    return MemoryProof(
        verdict=verdict,
        sentence=sentence + tpu_note,
        planned_argument_bytes=request.planned_bytes,
        argument_bytes=memory.argument_bytes,
        output_bytes=memory.output_bytes,
        alias_bytes=memory.alias_bytes,
        temp_bytes=memory.temp_bytes,
        tpu_total_bytes=None if tpu is None else total,
        limit_bytes=limit,
        compiler=memory.compiler if tpu is None else tpu.compiler,
    )


def _judge_memory(
    memory: Memory, planned: int, total: int, limit: int | None, is_tpu: bool
) -> tuple[Verdict, str]:
    if memory.argument_bytes != planned:
        return "disproven", (
            f"the compiler's arguments take {memory.argument_bytes:,} bytes per device, the plan "
            f"says {planned:,}."
        )
    arguments = f"the arguments take {planned:,} bytes per device, as planned, to the byte"
    if limit is None:
        return "proven", f"{arguments}."
    what = "arguments, outputs and temporaries" if is_tpu else "arguments and outputs"
    if total > limit:
        return "disproven", (
            f"{what} take {bytes_text(total)} per device, more than the limit of "
            f"{bytes_text(limit)}."
        )
    fits = f"{arguments}; {what} ({bytes_text(total)}) fit {bytes_text(limit)}"
    if is_tpu:
        return "proven", f"{fits}."
    return "proven", (
        f"{fits}. Temporaries are not included: those of a CPU ({bytes_text(memory.temp_bytes)}) "
        "are no forecast for a TPU or GPU."
    )


def _total_bytes(memory: Memory) -> int:
    return memory.argument_bytes + memory.output_bytes + memory.temp_bytes - memory.alias_bytes


def _observe_tpu(request: ProofRequest, staged: StagedProgram | None) -> tuple[Memory | None, str]:
    """Return the memory by the TPU compiler, or a note why it was not asked."""
    topology = request.options.topology
    if topology is None:
        return None, ""
    if staged is None:
        return None, " The TPU compiler was not asked: the constraints are not in the program yet."
    try:
        observed = observe_on_topology(staged, topology, request.options.compile_limit_s)
    except CompileError as error:
        return None, f" The TPU compiler was not asked: {error.what}"
    except Exception as error:  # lowering for TPU may fail where that for CPU does not
        return None, f" The TPU compiler was not asked: {error_summary(error)}"
    return observed.memory, ""
