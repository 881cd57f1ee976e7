"""The collectives that XLA inserts into a jit, and the memory per device.

JAX lowers the program for virtual devices in this process; a separate one compiles it
(`xla_process.py`), and the text dumped by XLA's partitioner lists the collectives (`hlo/`). It is
read right after partitioning: later passes of XLA for CPU widen bf16 and merge sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from shardlab import _jax
from shardlab._jax.compile_process import COMPILE_LIMIT_S
from shardlab._jax.lowered import CompilerInput, compiler_input, jaxlib_version
from shardlab._text.units import bytes_text
from shardlab.collectives.call import CollectiveCall, Phase
from shardlab.collectives.wire import wire_bytes
from shardlab.findings.source import SourceLocation
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.compiler.xla_process import CompiledProgram, compile_for_devices
from shardlab.tracing.hlo.hlo_collectives import HloCollective, hlo_collectives
from shardlab.tracing.hlo.hlo_flops import count_hlo_flops
from shardlab.tracing.hlo.hlo_module import Module, count_array_bytes, jax_dtype_name
from shardlab.tracing.hlo.replica_groups import GroupAxes, Groups, match_groups, match_pairs
from shardlab.tracing.jaxpr_flops import WHILE_LOOP_NOTE
from shardlab.tracing.observation import Memory
from shardlab.tracing.stage import StagedProgram


class CompiledObservation(NamedTuple):
    """The calls that the compiler inserts, the memory and FLOPs per device, and notes."""

    calls: tuple[CollectiveCall, ...]
    memory: Memory
    notes: tuple[str, ...]
    flops: int | None  # None where the text is past the point at which they can be counted


def observe_compiled(
    staged: StagedProgram, limit_s: float = COMPILE_LIMIT_S
) -> CompiledObservation:
    """Return what the compiler inserts into a program.

    Collectives of a shard_map are the program's own and not included.
    """
    program = compiler_input(staged.lower())
    compiled = compile_for_devices(program, staged.program, limit_s)
    compiler = f"CPU (jaxlib {jaxlib_version()})"
    return read_compiled_program(program, compiled, staged.mesh_with_devices, compiler)


def read_compiled_program(
    program: CompilerInput, compiled: CompiledProgram, mesh: Any, compiler: str
) -> CompiledObservation:
    """Return the observation of a compiled program, with groups as axes of the user's mesh."""
    mesh = choose_mesh(program, mesh)
    partitions = _PartitionMap(program.device_ids, mesh)
    collectives = hlo_collectives(compiled.module, _is_user_code) if compiled.module else []
    inserted = [collective for collective in collectives if collective.is_inserted]
    calls = tuple(
        call for collective in inserted for call in _collective_calls(collective, partitions)
    )
    memory = Memory(**compiled.memory, compiler=compiler)
    # The final text of XLA for TPU has fusions and custom calls, in which FLOPs cannot be counted.
    is_cpu = compiler.startswith("CPU")
    flops = count_hlo_flops(compiled.module) if compiled.module and is_cpu else None
    n_flops = flops.total if flops else None
    notes = _compiler_notes(calls, memory, is_cpu)
    if flops and flops.n_unknown_loops:
        notes.append(WHILE_LOOP_NOTE)
    return CompiledObservation(calls, memory, tuple(notes), n_flops)


def read_collectives(module: Module, device_ids: Sequence[int], mesh: Any) -> list[CollectiveCall]:
    """Return all collectives of a compiled program, its own and inserted ones, in text order."""
    partitions = _PartitionMap(device_ids, mesh)
    return [
        replace(call, origin="compiler" if collective.is_inserted else "program")
        for collective in hlo_collectives(module, _is_user_code)
        for call in _collective_calls(collective, partitions)
    ]


def _is_user_code(location: SourceLocation) -> bool:
    return _jax.is_user_file(location.file)


# ------------------------------------------------------------------------- devices -> mesh axes


class _PartitionMap:
    """Maps the partitions of a program to positions on the user's mesh."""

    def __init__(self, device_ids: Sequence[int], mesh: Any) -> None:
        n_devices = len(device_ids)
        self.sizes: MeshSizes = (("devices", n_devices),)
        self._order: list[int] | None = None
        # A mesh of another size says nothing about these partitions; they form one axis.
        if mesh is None or mesh.size != n_devices:
            return
        self.sizes = tuple(mesh.shape.items())
        devices = getattr(
            mesh, "devices", None
        )  # an AbstractMesh has none, and keeps partition order
        if devices is None:
            return
        position_by_id = {device.id: position for position, device in enumerate(devices.flat)}
        order = [
            position_by_id.get(device_id, position) for position, device_id in enumerate(device_ids)
        ]
        self._order = None if order == list(range(n_devices)) else order

    def find_axes(self, collective: HloCollective) -> GroupAxes:
        if collective.pairs:
            return match_pairs(self._to_mesh_positions(collective.pairs), self.sizes)
        return match_groups(self._to_mesh_positions(collective.groups), self.sizes)

    def _to_mesh_positions(self, groups: Groups) -> Groups:
        order = self._order
        if order is None:
            return groups
        return tuple(tuple(order[device] for device in group) for group in groups)


def choose_mesh(program: CompilerInput, requested: Any) -> Any:
    """Return the requested mesh if it fits, or the program's own with most axes."""
    n_devices = len(program.device_ids)
    fitting = [mesh for mesh in program.meshes if mesh.size == n_devices]
    if requested is not None and requested.size == n_devices:
        return requested
    # Several meshes may describe the same devices; the one with most axes names most groups.
    return max(fitting, key=lambda mesh: len(mesh.axis_names), default=None)


# ------------------------------------------------------------------------------ the record


def _collective_calls(collective: HloCollective, partitions: _PartitionMap) -> list[CollectiveCall]:
    """Return the record; none if every group has one device and nothing is sent."""
    group_axes = partitions.find_axes(collective)
    # XLA leaves collectives of groups with one device; they send nothing.
    if group_axes.size <= 1 or not group_axes.names:
        return []
    # As for the program's own calls: the payload is the operand on one device.
    payload = count_array_bytes(collective.operand)
    details: dict[str, Any] = {"partly": group_axes.deviation} if group_axes.deviation else {}
    # psum, pmax and pmin say their reduction by name.
    if collective.reduction not in ("", "add", "maximum", "minimum"):
        details["reduction"] = collective.reduction
    if collective.n_sums > 1:
        details["merged"] = collective.n_sums
    call = CollectiveCall(
        op=collective.op,
        mesh_axes=group_axes.names,
        shape=collective.operand.shape,
        dtype=jax_dtype_name(collective.operand.dtype),
        payload_bytes=payload,
        wire_bytes=wire_bytes(collective.op, payload, group_axes.size),
        count=collective.count,
        phase=phase_of_op_name(collective.op_name),
        source=collective.source,
        group_size=group_axes.size,
        out_shape=collective.result.shape,
        varies=group_axes.names,
        within=collective.within,
        origin="compiler",
        details=details,
    )
    return [call]


def phase_of_op_name(op_name: str) -> Phase:
    """Return the phase of an operation, from the names of JAX's transforms in its op_name.

    >>> phase_of_op_name("jit(f)/jvp()/dot_general")
    'forward'
    >>> phase_of_op_name("jit(f)/transpose(jvp())/dot_general")
    'backward'
    >>> phase_of_op_name("jit(f)/transpose(jvp(jvp()))/checkpoint/rematted_computation/sin")
    'recompute'
    """
    if "rematted_computation" in op_name:
        return "recompute"
    return "backward" if "transpose(" in op_name else "forward"


def _compiler_notes(calls: Sequence[CollectiveCall], memory: Memory, is_cpu: bool) -> list[str]:
    notes = []
    if calls and is_cpu:
        notes.append(
            "Inserted collectives are listed as XLA's partitioner writes them; a TPU or GPU may "
            "combine, overlap or move some of them afterwards."
        )
    merged = [call for call in calls if call.details.get("merged")]
    if merged:
        n_merged = sum(call.details["merged"] - 1 for call in merged)
        notes.append(
            f"{n_merged} psums that are only added to another psum are counted with it: XLA adds "
            "first and then reduces once on TPUs and GPUs."
        )
    irregular = [call for call in calls if call.details.get("partly")]
    if irregular:
        texts = "; ".join(
            dict.fromkeys(f"{call.op}: {call.details['partly']}" for call in irregular)
        )
        notes.append(f"Some collectives do not span full mesh axes: {texts}.")
    if is_cpu and memory.temp_bytes:
        notes.append(
            f"Temporary memory ({bytes_text(memory.temp_bytes)}) is that of a CPU, not a "
            "prediction for a TPU or GPU; arguments and outputs are exact."
        )
    return notes
