"""Estimates the time of a traced program on named hardware."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from shardlab._text.nearest import unknown_name_text
from shardlab._text.units import bytes_text
from shardlab.errors import UnknownMeshAxis
from shardlab.hardware.chip_file import FIGURE_UNITS
from shardlab.hardware.chips import Hardware, parse_hardware
from shardlab.hardware.collective_time import (
    CollectiveTimer,
    flops_figure,
    parse_efficiency,
    permutation_pairs,
)
from shardlab.hardware.estimate import CallTime, Estimate, FigureUsed
from shardlab.hardware.timing import Timing
from shardlab.sharding.mesh import MeshSizes, mesh_text
from shardlab.tracing.trace import Trace, most_expensive_branches


def estimate_trace(
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
    """Return the estimated time of the collectives and the FLOPs of a trace.

    `dcn` names the mesh axes that go over the data-centre network (on GPUs: across nodes). An
    efficiency is the share of the peak that is reached; latency is not divided by it.
    """
    chip = parse_hardware(hardware, figures)
    dcn = (dcn,) if isinstance(dcn, str) else tuple(dcn)
    _check_dcn_axes(dcn, trace.mesh)
    compute = parse_efficiency(efficiency if compute_efficiency is None else compute_efficiency)
    network = parse_efficiency(efficiency if network_efficiency is None else network_efficiency)
    timer = CollectiveTimer(hardware=chip, mesh=trace.mesh, dcn=dcn, efficiency=network)
    calls = _time_calls(trace, timer)
    seconds, formula = _compute_time(trace, timer, dtype, compute)
    figures_used = tuple(
        FigureUsed(
            name=figure.name,
            value=figure.value,
            unit=FIGURE_UNITS[figure.name],
            source=figure.source,
        )
        for figure in timer.used.values()
    )
    notes = (*_counting_notes(trace), *_network_notes(trace, timer), *_memory_notes(trace, chip))
    return Estimate(
        hardware=chip.name,
        calls=calls,
        compute_seconds=seconds,
        figures=figures_used,
        compute_formula=formula,
        compute_efficiency=compute,
        network_efficiency=network,
        notes=notes,
        library="NCCL" if chip.nccl and calls else "",
    )


def _time_calls(trace: Trace, timer: CollectiveTimer) -> tuple[CallTime, ...]:
    counted_ids = {id(call) for call in most_expensive_branches(trace.collectives)}
    call_times = []
    times_by_key: dict[object, Timing] = {}
    for index, call in enumerate(trace.collectives):
        pairs = permutation_pairs(call)
        # Layers repeat, so each distinct call is timed once; the key has all that the timer uses.
        sizes = (call.payload_bytes, call.group_size, call.wire_bytes)
        key = (call.op, call.mesh_axes, sizes, None if pairs is None else tuple(pairs))
        time = (
            times_by_key[key]
            if key in times_by_key
            else times_by_key.setdefault(key, timer.time(call))
        )
        count = 1 if call.count is None else call.count
        call_times.append(
            CallTime(
                call=index,
                seconds=time.seconds,
                count=count,
                axes=call.mesh_axes,
                network=time.network,
                formula=time.formula,
                is_counted=id(call) in counted_ids,
            )
        )
    return tuple(call_times)


def _compute_time(
    trace: Trace, timer: CollectiveTimer, dtype: str, efficiency: float
) -> tuple[float | None, str]:
    if trace.flops is None:
        return None, ""
    figure = timer.hardware.figure(flops_figure(dtype), needed_for=f"needed for FLOPs in {dtype}")
    timer.used[figure.name] = figure
    return trace.flops / (figure.value * efficiency), f"FLOPs / {figure.name}"


def _check_dcn_axes(dcn: Sequence[str], mesh: MeshSizes) -> None:
    names = [name for name, _ in mesh]
    for name in dcn:
        if name not in names:
            raise UnknownMeshAxis(
                unknown_name_text("mesh axis", name, names),
                where=f"dcn={tuple(dcn)!r}, mesh {mesh_text(mesh)}",
                fix="name an axis of the mesh.",
            )


def _counting_notes(trace: Trace) -> list[str]:
    notes = []
    n_unknown = sum(call.count is None for call in trace.collectives)
    if n_unknown:
        noun = "call is" if n_unknown == 1 else "calls are"
        notes.append(f"{n_unknown} {noun} in a while loop: the time of one iteration is counted.")
    if any(scope.kind == "cond" for call in trace.collectives for scope in call.within):
        notes.append("Of each cond the branch that sends most is counted.")
    return notes


def _network_notes(trace: Trace, timer: CollectiveTimer) -> list[str]:
    chip, notes = timer.hardware, list[str]()
    if not trace.collectives:
        return notes
    # Axes over the data-center network do not use the links inside a pod.
    sizes_in_pod = [size for name, size in trace.mesh if name not in timer.dcn and size > 1]
    n_devices = prod(sizes_in_pod)
    if chip.pod is not None and n_devices > chip.pod * chip.devices_per_chip:
        notes.append(
            f"{n_devices:,} devices do not fit in one pod of {chip.name}, which has "
            f"{chip.pod * chip.devices_per_chip:,}: name the mesh axis that crosses pods, "
            f'such as dcn=("{trace.mesh[0][0]}",).'
        )
    # Two mesh axes on one torus dimension would share its links.
    if chip.network == "torus" and len(sizes_in_pod) > chip.torus_axes:
        notes.append(
            f"The mesh has {len(sizes_in_pod)} axes, the torus {chip.torus_axes}: each axis is "
            "timed as if it had its own links."
        )
    if "hop_latency" not in chip.figures:
        notes.append("Latency is not counted: no figure is published.")
    return notes


def _memory_notes(trace: Trace, chip: Hardware) -> list[str]:
    if trace.memory is None or "hbm_bytes" not in chip.figures:
        return []
    memory, capacity = trace.memory, chip.figures["hbm_bytes"].value
    # Aliased (donated) buffers are in both arguments and outputs.
    needed = memory.argument_bytes + memory.output_bytes + memory.temp_bytes - memory.alias_bytes
    if needed <= capacity:
        return []
    return [
        f"It does not fit: one device needs {bytes_text(needed)} (reported by XLA for "
        f"{memory.compiler}) and has {bytes_text(capacity)}."
    ]
