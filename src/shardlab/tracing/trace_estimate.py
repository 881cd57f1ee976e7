"""Estimates how long a traced program takes on named hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import prod
from pathlib import Path

from shardlab.errors import UnknownMeshAxis
from shardlab.hardware.chip_file import FIGURES
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.hardware.collective_time import (
    CollectiveTimer,
    flops_figure,
    parse_efficiency,
    permutation_pairs,
)
from shardlab.hardware.estimate import CallTime, Estimate, FigureUsed
from shardlab.hardware.timing import Timing
from shardlab.sharding.mesh import MeshSizes
from shardlab.tracing.trace import Trace, worst


def estimate(
    trace: Trace,
    hardware: str | Path | Hardware,
    *,
    dcn: Sequence[str] = (),
    efficiency: float = 1.0,
    compute_efficiency: float | None = None,
    network_efficiency: float | None = None,
    dtype: str = "bf16",
    figures: Mapping[str, float] | None = None,
) -> Estimate:
    """Return how long the calls and the arithmetic of a trace take on named hardware.

    `dcn` names the mesh axes that go over the data-centre network (on GPUs: across nodes). An
    efficiency is the share of the peak that is reached; latency is not divided by it.
    """
    chip = parse_hardware(hardware, figures)
    dcn = (dcn,) if isinstance(dcn, str) else tuple(dcn)
    _check_axes(dcn, trace.mesh)
    compute = parse_efficiency(efficiency if compute_efficiency is None else compute_efficiency)
    network = parse_efficiency(efficiency if network_efficiency is None else network_efficiency)
    clock = CollectiveTimer(hardware=chip, mesh=trace.mesh, dcn=dcn, efficiency=network)
    calls = _timed(trace, clock)
    seconds, formula = _compute(trace, clock, dtype, compute)
    used = tuple(
        FigureUsed(name=each.name, value=each.value, unit=FIGURES[each.name], source=each.source)
        for each in clock.used.values()
    )
    notes = (*_counting_notes(trace), *_network_notes(trace, clock), *_memory_notes(trace, chip))
    return Estimate(
        hardware=chip.name,
        calls=calls,
        compute_seconds=seconds,
        figures=used,
        compute_formula=formula,
        compute_efficiency=compute,
        network_efficiency=network,
        notes=notes,
    )


def _timed(trace: Trace, clock: CollectiveTimer) -> tuple[CallTime, ...]:
    kept = {id(call) for call in worst(trace.collectives)}
    timed = []
    seen: dict[object, Timing] = {}
    for at, call in enumerate(trace.collectives):
        pairs = permutation_pairs(call)
        # Layers repeat: one key for all that the clock looks at.
        sizes = (call.payload_bytes, call.group_size, call.wire_bytes)
        key = (call.op, call.mesh_axes, sizes, None if pairs is None else tuple(pairs))
        time = seen[key] if key in seen else seen.setdefault(key, clock.time(call))
        count = 1 if call.count is None else call.count
        timed.append(
            CallTime(
                call=at,
                seconds=time.seconds,
                count=count,
                axes=call.mesh_axes,
                network=time.network,
                formula=time.formula,
                counted=id(call) in kept,
            )
        )
    return tuple(timed)


def _compute(
    trace: Trace, clock: CollectiveTimer, dtype: str, share: float
) -> tuple[float | None, str]:
    if trace.flops is None:
        return None, ""
    figure = clock.hardware.figure(flops_figure(dtype), needed_for=f"needed for FLOPs in {dtype}")
    clock.used[figure.name] = figure
    return trace.flops / (figure.value * share), f"FLOPs / {figure.name}"


def _check_axes(dcn: Sequence[str], mesh: MeshSizes) -> None:
    names = [name for name, _ in mesh]
    for name in dcn:
        if name not in names:
            close = get_close_matches(name, names, n=1)
            raise UnknownMeshAxis(
                f"The mesh has no axis named {name!r}; it has {', '.join(map(repr, names))}.",
                where=f"dcn={tuple(dcn)!r}, mesh {_mesh_text(mesh)}",
                fix=f"{close[0]!r}, the nearest name." if close else "an axis of the mesh.",
            )


def _counting_notes(trace: Trace) -> list[str]:
    notes = []
    n_unknown = sum(call.count is None for call in trace.collectives)
    if n_unknown:
        noun = "call stands" if n_unknown == 1 else "calls stand"
        notes.append(f"{n_unknown} {noun} in a while loop: the time of one turn is counted.")
    if any(scope.kind == "cond" for call in trace.collectives for scope in call.within):
        notes.append("Of each cond the branch that sends most is counted.")
    return notes


def _network_notes(trace: Trace, clock: CollectiveTimer) -> list[str]:
    chip, notes = clock.hardware, list[str]()
    if not trace.collectives:
        return notes
    inside = [size for name, size in trace.mesh if name not in clock.dcn and size > 1]
    n_devices = prod(inside)
    if chip.pod is not None and n_devices > chip.pod * chip.devices_per_chip:
        notes.append(
            f"{n_devices:,} devices are more than the {chip.pod * chip.devices_per_chip:,} that "
            f"links connect in one pod of {chip.name}: name the axis between pods, "
            f'such as dcn=("{trace.mesh[0][0]}",).'
        )
    if chip.network == "torus" and len(inside) > chip.torus_axes:
        notes.append(
            f"The mesh has {len(inside)} axes and the torus {chip.torus_axes}: each is timed as if "
            "it had links of its own."
        )
    if "hop_latency" not in chip.figures:
        notes.append("Latency is not counted: there is no published figure.")
    return notes


def _memory_notes(trace: Trace, chip: Hardware) -> list[str]:
    if trace.memory is None or "hbm_bytes" not in chip.figures:
        return []
    memory, room = trace.memory, chip.figures["hbm_bytes"].value
    needed = memory.argument_bytes + memory.output_bytes + memory.temp_bytes - memory.alias_bytes
    if needed <= room:
        return []
    return [
        f"It does not fit: one device needs {needed / 1e9:.1f} GB as the {memory.compiler} "
        f"compiler counts, and has {room / 1e9:.1f} GB."
    ]


def _mesh_text(mesh: MeshSizes) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh)
