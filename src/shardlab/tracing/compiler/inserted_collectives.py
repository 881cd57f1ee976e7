"""What the compiler adds to a jit: the collectives it inserts, and the memory of one device.

JAX lowers the program for virtual devices here; a process of its own compiles what it lowered
(`compile.py`), and the text that XLA's partitioner writes says who exchanges what (`hlo/`). Read
right after partitioning: what comes later in a CPU's pipeline widens bf16 and merges sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shardlab import _jax
from shardlab._jax.lowered import CompilerInput, compiler_input, jaxlib_version
from shardlab.collectives.call import CollectiveCall, Phase
from shardlab.collectives.wire import wire_bytes
from shardlab.findings.source import SourceLocation
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.compiler.xla_process import LIMIT_S, Compiled, compile_for_devices
from shardlab.tracing.hlo.hlo_collectives import HloCollective, hlo_collectives
from shardlab.tracing.hlo.hlo_flops import flops
from shardlab.tracing.hlo.hlo_module import jax_dtype_name, n_bytes
from shardlab.tracing.hlo.replica_groups import Along, Groups, along, along_pairs
from shardlab.tracing.jaxpr_flops import ONE_TURN
from shardlab.tracing.observation import Memory
from shardlab.tracing.stage import StagedProgram


class Seen(NamedTuple):
    """The calls that the compiler inserts, the memory of one device, notes, and its FLOPs."""

    calls: tuple[CollectiveCall, ...]
    memory: Memory
    notes: tuple[str, ...]
    flops: int | None  # None where the text is past the point at which they can be counted


def observe_compiled(staged: StagedProgram, limit_s: float = LIMIT_S) -> Seen:
    """Return what the compiler tells of a program.

    Collectives of a shard_map are the program's own and are not among them.
    """
    program = compiler_input(staged.lower())
    compiled = compile_for_devices(program, staged.program, limit_s)
    compiler = f"CPU (jaxlib {jaxlib_version()})"
    return seen(program, compiled, staged.full_mesh, compiler)


def seen(program: CompilerInput, compiled: Compiled, mesh: Any, compiler: str) -> Seen:
    """Return what a compiled program tells, in the terms of the person's mesh."""
    mesh = main_mesh(program, mesh)
    places = _Places(program.device_ids, mesh)
    told = hlo_collectives(compiled.module, _is_theirs) if compiled.module else []
    found = [each for each in told if each.is_inserted]
    calls = tuple(call for each in found for call in _call(each, places))
    memory = Memory(**compiled.memory, compiler=compiler)
    is_cpu = compiler.startswith("CPU")
    counted = flops(compiled.module) if compiled.module and is_cpu else None
    n_flops = counted.total if counted else None
    notes = _notes(calls, memory, is_cpu)
    if counted and counted.n_unknown_loops:
        notes.append(ONE_TURN)
    return Seen(calls, memory, tuple(notes), n_flops)


def _is_theirs(place: SourceLocation) -> bool:
    return _jax.is_a_persons(place.file)


# ------------------------------------------------------------------------- devices -> mesh axes


class _Places:
    """Where on the person's mesh each partition of the program stands."""

    def __init__(self, device_ids: Sequence[int], mesh: Any) -> None:
        n_devices = len(device_ids)
        self.sizes: MeshSizes = (("devices", n_devices),)
        self._order: list[int] | None = None
        if mesh is None or mesh.size != n_devices:
            return
        self.sizes = tuple(mesh.shape.items())
        devices = getattr(mesh, "devices", None)  # an AbstractMesh has none: the order is its own
        if devices is None:
            return
        at = {device.id: place for place, device in enumerate(devices.flat)}
        order = [at.get(id, place) for place, id in enumerate(device_ids)]
        self._order = None if order == list(range(n_devices)) else order

    def along(self, exchange: HloCollective) -> Along:
        if exchange.pairs:
            return along_pairs(self._moved(exchange.pairs), self.sizes)
        return along(self._moved(exchange.groups), self.sizes)

    def _moved(self, groups: Groups) -> Groups:
        order = self._order
        if order is None:
            return groups
        return tuple(tuple(order[device] for device in group) for group in groups)


def main_mesh(program: CompilerInput, given: Any) -> Any:
    """Return the mesh that was given where it fits, or the program's own with most axes."""
    n_devices = len(program.device_ids)
    own = [mesh for mesh in program.meshes if mesh.size == n_devices]
    if given is not None and given.size == n_devices:
        return given
    return max(own, key=lambda mesh: len(mesh.axis_names), default=None)


# ------------------------------------------------------------------------------ the record


def _call(exchange: HloCollective, places: _Places) -> list[CollectiveCall]:
    """Return the record; none where every device is alone and nothing is sent."""
    where = places.along(exchange)
    if where.size <= 1 or not where.names:
        return []
    payload = n_bytes(exchange.operand)
    details: dict[str, Any] = {"partly": where.partly} if where.partly else {}
    if exchange.reduction not in ("", "add", "maximum", "minimum"):
        details["reduction"] = exchange.reduction
    if exchange.n_sums > 1:
        details["merged"] = exchange.n_sums
    call = CollectiveCall(
        op=exchange.op,
        mesh_axes=where.names,
        shape=exchange.operand.shape,
        dtype=jax_dtype_name(exchange.operand.dtype),
        payload_bytes=payload,
        wire_bytes=wire_bytes(exchange.op, payload, where.size),
        count=exchange.count,
        phase=phase(exchange.op_name),
        source=exchange.source,
        group_size=where.size,
        out_shape=exchange.result.shape,
        varies=where.names,
        within=exchange.within,
        origin="compiler",
        details=details,
    )
    return [call]


def phase(op_name: str) -> Phase:
    """Return what an operation is for, as the names that JAX gives its transforms tell.

    >>> phase("jit(f)/jvp()/dot_general"), phase("jit(f)/transpose(jvp())/dot_general")
    ('forward', 'backward')
    >>> phase("jit(f)/transpose(jvp(jvp()))/checkpoint/rematted_computation/sin")
    'recompute'
    """
    if "rematted_computation" in op_name:
        return "recompute"
    return "backward" if "transpose(" in op_name else "forward"


def _notes(calls: Sequence[CollectiveCall], memory: Memory, is_cpu: bool) -> list[str]:
    notes = []
    if calls and is_cpu:
        notes.append(
            "What the compiler inserts is listed as XLA's partitioner writes it; a TPU or GPU may "
            "combine, overlap or move some of it afterwards."
        )
    merged = [call for call in calls if call.details.get("merged")]
    if merged:
        n_more = sum(call.details["merged"] - 1 for call in merged)
        notes.append(
            f"{n_more} sums that are only added to another sum are counted with it, since XLA adds "
            "first and then sums once on TPUs and GPUs."
        )
    odd = [call for call in calls if call.details.get("partly")]
    if odd:
        shown = "; ".join(dict.fromkeys(f"{c.op}: {c.details['partly']}" for c in odd))
        notes.append(f"Some exchanges do not run along whole mesh axes: {shown}.")
    if is_cpu and memory.temp_bytes:
        notes.append(
            f"Temporary memory ({memory.temp_bytes:,} bytes) is what a CPU would need, no forecast "
            "for a TPU or GPU; arguments and outputs are exact."
        )
    return notes
