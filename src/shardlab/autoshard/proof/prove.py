"""`prove`: whether shardings of a jit program are what they are claimed to be.

Three proofs, each independent of the search that found the shardings:

1. collectives: XLA's own partitioner, on a mesh that exists only for the compiler, inserts what was
   claimed (`collective_comparison.py`);
2. values: the partitioned program, run on real host devices, returns what the unsharded one returns
   (`device_run.py`);
3. memory: the compiler's argument bytes per device are the planned ones to the byte, and what the
   compiler needs fits the limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from shardlab._jax.partitioned_program import InsertedCall
from shardlab._jax.shardy_program import PartitioningFailed, lower_once
from shardlab._text.units import bytes_text
from shardlab.analysis.run_arguments import error_summary
from shardlab.autoshard.proof.collective_comparison import compare_collectives
from shardlab.autoshard.proof.device_run import prove_values
from shardlab.autoshard.proof.flat_program import (
    FlatProgram,
    donated_leaves,
    flatten_program,
    jit_with_state,
)
from shardlab.autoshard.proof.proof_record import CollectiveProof, MemoryProof, Proof, Verdict
from shardlab.autoshard.proof.scaled_program import partition_spec
from shardlab.errors import CompileError, LayoutMismatch
from shardlab.sharding.layout import layout
from shardlab.sharding.mesh import Mesh, parse_mesh
from shardlab.sharding.spec import Spec, parse_spec
from shardlab.simulator.virtual_devices.devices import virtual_mesh
from shardlab.tracing.compiler.inserted_collectives import CompiledObservation, observe_compiled
from shardlab.tracing.compiler.tpu_topology import observe_on_topology
from shardlab.tracing.observation import Memory
from shardlab.tracing.stage import LoweringFailed, StagedProgram, stage_program

_LIMIT_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProofOptions:
    """What is claimed besides the specs, and how long each proof may take."""

    # Those that Shardy inserts; None: the proof asks Shardy itself.
    collectives: tuple[InsertedCall, ...] | None = None
    # index of a result -> index of the argument that it replaces in the next step, and whose
    # sharding it therefore must have
    state: Mapping[int, int] = dataclasses.field(default_factory=dict)
    memory_limit: int | None = None  # bytes per device
    topology: str | None = None  # "v5p:4x4x4": also ask the TPU compiler, with shardlab[tpu]
    compile_limit_s: float = _LIMIT_S
    run_limit_s: float = _LIMIT_S


def prove(
    f: Callable[..., Any],
    args: Sequence[Any],
    mesh: Any,
    specs: Sequence[Any],
    options: ProofOptions | None = None,
) -> Proof:
    """Return what can be proven about `f(*args)` with its arguments sharded by `specs` on `mesh`.

    `args` is a tuple of pytrees of arrays or ShapeDtypeStructs, `specs` has one spec for each of
    `jax.tree.leaves(args)`. Raises `LayoutMismatch` and other layout errors for specs that do not
    fit the arguments. A proof that cannot be made is "not proven", with the reason.

    >>> import jax, jax.numpy as jnp
    >>> w, x = jnp.ones((8, 4)), jax.ShapeDtypeStruct((4,), jnp.float32)
    >>> proof = prove(lambda w, x: w @ x, (w, x), "data=4", ("data", ""))
    >>> proof.values.verdict, proof.memory.argument_bytes  # 8 * 4 * 4 / 4 + 4 * 4
    ('proven', 48)
    """
    options = options or ProofOptions()
    parsed_mesh = parse_mesh(mesh)
    program = flatten_program(f, args, options.state)
    parsed_specs = _parse_specs(program, specs)
    # First: it raises for specs that do not fit, before anything is compiled.
    planned = _planned_argument_bytes(program, parsed_specs, parsed_mesh)
    sizes = dict(parsed_mesh.shape)
    collectives, memory = _prove_by_compiler(
        f, args, program, parsed_specs, sizes, planned, options
    )
    return Proof(
        program=program.name,
        mesh=tuple(sizes.items()),
        collectives=collectives,
        values=prove_values(program, tuple(sizes.items()), parsed_specs, options.run_limit_s),
        memory=memory,
    )


def _parse_specs(program: FlatProgram, specs: Sequence[Any]) -> tuple[Spec, ...]:
    if len(specs) != len(program.leaves):
        raise LayoutMismatch(
            f"There are {len(specs)} specs for {len(program.leaves)} arrays.",
            where=f"the arguments of '{program.name}'",
            fix="pass one spec for each of jax.tree.leaves(args), in that order.",
        )
    return tuple(map(parse_spec, specs))


def _planned_argument_bytes(program: FlatProgram, specs: Sequence[Spec], mesh: Mesh) -> int:
    """Return the bytes of all arguments on one device, by the arithmetic of `layout`."""
    return sum(
        layout(aval.shape, spec, mesh, str(aval.dtype)).bytes_per_device
        for aval, spec in zip(program.avals, specs, strict=True)
    )


# --------------------------------------------------------------------------- by the compiler


def _prove_by_compiler(
    f: Callable[..., Any],
    args: Sequence[Any],
    program: FlatProgram,
    specs: Sequence[Spec],
    sizes: dict[str, int],
    planned: int,
    options: ProofOptions,
) -> tuple[CollectiveProof, MemoryProof]:
    """Compile once for both proofs."""
    try:
        staged = _stage(f, args, program, specs, sizes)
        observed = observe_compiled(staged, options.compile_limit_s)
    except CompileError as error:
        return _not_compiled(error.what, planned, options)
    except LoweringFailed as error:
        return _not_compiled(error_summary(error.__cause__ or error), planned, options)  # type: ignore[arg-type]
    except Exception as error:  # tracing runs the user's function
        return _not_compiled(error_summary(error), planned, options)
    claimed = options.collectives
    if claimed is None:
        claimed = _shardy_collectives(f, args, specs, sizes, options.state)
    collectives = compare_collectives(claimed, observed.calls, sizes)
    return collectives, _memory_proof(staged, observed, planned, options)


def _not_compiled(
    reason: str, planned: int, options: ProofOptions
) -> tuple[CollectiveProof, MemoryProof]:
    sentence = f"the program was not compiled for the mesh: {reason}"
    return (
        CollectiveProof(verdict="not proven", sentence=sentence),
        MemoryProof(
            verdict="not proven",
            sentence=sentence,
            planned_argument_bytes=planned,
            limit_bytes=options.memory_limit,
        ),
    )


def _stage(
    f: Callable[..., Any],
    args: Sequence[Any],
    program: FlatProgram,
    specs: Sequence[Spec],
    sizes: dict[str, int],
) -> StagedProgram:
    mesh = virtual_mesh(sizes)
    structs = [
        jax.ShapeDtypeStruct(
            aval.shape, aval.dtype, sharding=NamedSharding(mesh, partition_spec(spec))
        )
        for aval, spec in zip(program.avals, specs, strict=True)
    ]
    donated = donated_leaves(f, args, sizes)
    if program.state:  # the number of results is known only once it was traced
        stage_program(jax.jit(program.fresh_function()), program.avals, sizes)
    shardings = [struct.sharding for struct in structs]
    jitted = jit_with_state(program, program.fresh_function(), shardings, donated)
    return stage_program(jitted, structs, sizes)


def _shardy_collectives(
    f: Callable[..., Any],
    args: Sequence[Any],
    specs: Sequence[Spec],
    sizes: dict[str, int],
    state: Mapping[int, int],
) -> tuple[InsertedCall, ...] | None:
    leaves = jax.tree.leaves(tuple(args))
    full_axes = [
        (*spec.axes, *((),) * (len(leaf.shape) - len(spec.axes)))
        for spec, leaf in zip(specs, leaves, strict=True)
    ]
    try:
        lowered = lower_once(f, args, tuple(sizes.items()), state)
        return lowered.partition(full_axes).collectives
    except PartitioningFailed:
        return None


def _memory_proof(
    staged: StagedProgram, observed: CompiledObservation, planned: int, options: ProofOptions
) -> MemoryProof:
    memory = observed.memory
    tpu, tpu_note = _observe_tpu(staged, options)
    held = memory.argument_bytes + memory.output_bytes - memory.alias_bytes
    total = _total_bytes(tpu) if tpu else held
    verdict, sentence = _judge_memory(memory, planned, total, options.memory_limit, bool(tpu))
    return MemoryProof(
        verdict=verdict,
        sentence=sentence + tpu_note,
        planned_argument_bytes=planned,
        argument_bytes=memory.argument_bytes,
        output_bytes=memory.output_bytes,
        alias_bytes=memory.alias_bytes,
        temp_bytes=memory.temp_bytes,
        tpu_total_bytes=total if tpu else None,
        limit_bytes=options.memory_limit,
        compiler=tpu.compiler if tpu else memory.compiler,
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


def _observe_tpu(staged: StagedProgram, options: ProofOptions) -> tuple[Memory | None, str]:
    """Return the memory by the TPU compiler, or a note why it was not asked."""
    if options.topology is None:
        return None, ""
    try:
        return observe_on_topology(staged, options.topology, options.compile_limit_s).memory, ""
    except (CompileError, LoweringFailed) as error:
        return None, f" The TPU compiler was not asked: {error_summary(error)}"
    except Exception as error:
        return None, f" The TPU compiler was not asked: {error_summary(error)}"
