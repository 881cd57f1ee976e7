"""Time: a trace and hardware -> an estimate, each number with the formula that gave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from math import prod
from pathlib import Path

from shardlab.cost.family import KNOWN, Timing
from shardlab.cost.hardware import Figure, Hardware, parse_hardware
from shardlab.cost.hardware_file import FIGURES
from shardlab.cost.switched import crossings, dcn_time, spans_of, switched_time
from shardlab.cost.torus import Side, torus_time
from shardlab.errors import BadEfficiency, UnknownMeshAxis
from shardlab.errors.brief import brief
from shardlab.layouts.dtype import parse_dtype
from shardlab.records.collective import CollectiveCall
from shardlab.records.estimate import CallTime, Estimate, FigureUsed
from shardlab.records.observation import Sizes
from shardlab.records.trace import Trace, worst


@dataclass
class Clock:
    """Times the calls on one mesh, and remembers the figures that it used."""

    hardware: Hardware
    mesh: Sizes
    dcn: tuple[str, ...]
    efficiency: float
    used: dict[str, Figure] = field(default_factory=dict)

    def bandwidth(self, name: str, call: CollectiveCall) -> float:
        axes = ", ".join(f"'{axis}'" for axis in call.mesh_axes)
        figure = self.hardware.figure(name, needed_for=f"needed for {call.op} over {axes}")
        self.used[name] = figure
        return figure.value * self.efficiency

    def hop(self) -> float:
        figure = self.hardware.figures.get("hop_latency")
        if figure is None:
            return 0.0
        self.used["hop_latency"] = figure
        return figure.value

    def time(self, call: CollectiveCall) -> Timing:
        """Return the time of one execution of a call."""
        if call.group_size <= 1:
            return Timing(0.0, "alone: nothing is sent", "")
        if self.hardware.network == "switch":
            return self._switched(call)
        return self._torus(call)

    def _switched(self, call: CollectiveCall) -> Timing:
        # Mesh order, except that axes said to cross nodes are outermost.
        order = sorted(self.mesh, key=lambda axis: axis[0] not in self.dcn)
        spans = spans_of(tuple(order), call.mesh_axes, self.hardware.domain, call.group_size)
        inside = self.bandwidth("nvlink_bandwidth", call) if spans.in_node > 1 else 0.0
        leaves = spans.n_nodes > 1 or spans.in_node == 1
        egress = self.bandwidth("node_egress", call) if leaves else 0.0
        pairs = permutation(call)
        crossing = crossings(pairs, lambda at: at // spans.in_node) if pairs is not None else None
        op, payload = _as_known(call)
        return switched_time(op, payload, spans, inside=inside, egress=egress, crossing=crossing)

    def _torus(self, call: CollectiveCall) -> Timing:
        outer, sides = self._laid(call)
        op, payload = _as_known(call)
        levels = []
        if sides:
            part = payload * outer if op == "all_gather" else payload
            levels.append(
                torus_time(
                    op,
                    part,
                    sides,
                    link=self.bandwidth("link_bandwidth", call),
                    hop=self.hop(),
                    torus_axes=self.hardware.torus_axes,
                    pairs=None if outer > 1 else permutation(call),
                )
            )
        if outer > 1:
            inside = prod(side.size for side in sides)
            dcn = self.bandwidth("dcn_bandwidth", call)
            levels.append(dcn_time(op, payload, inside, outer, dcn))
        return max(levels, key=lambda level: level.seconds)

    def _laid(self, call: CollectiveCall) -> tuple[int, list[Side]]:
        """Return over how many slices a call goes, and the sides it has inside a slice."""
        sizes = {name: size for name, size in self.mesh if name in call.mesh_axes and size > 1}
        if call.group_size != prod(sizes.values()):
            # axis_index_groups: a part of an axis has no link that joins its ends
            return 1, [Side(call.group_size, is_ring=False)]
        n_slice = prod(size for name, size in self.mesh if name not in self.dcn)
        sides = [
            Side(sizes[name], self.hardware.makes_ring(sizes[name], n_slice))
            for name in sizes
            if name not in self.dcn
        ]
        return prod(sizes[name] for name in sizes if name in self.dcn), sides


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
    compute = share_of_peak(efficiency if compute_efficiency is None else compute_efficiency)
    network = share_of_peak(efficiency if network_efficiency is None else network_efficiency)
    clock = Clock(chip, trace.mesh, dcn, network)
    calls = _timed(trace, clock)
    seconds, formula = _compute(trace, clock, dtype, compute)
    used = tuple(
        FigureUsed(each.name, each.value, FIGURES[each.name], each.source)
        for each in clock.used.values()
    )
    notes = (*_counting_notes(trace), *_network_notes(trace, clock), *_memory_notes(trace, chip))
    return Estimate(chip.name, calls, seconds, used, formula, compute, network, notes)


def permutation(call: CollectiveCall) -> list[tuple[int, int]] | None:
    """Return the pairs of a ppermute, sender and receiver, where the trace has them."""
    if call.op != "ppermute":
        return None
    pairs = call.details.get("pairs")
    return None if pairs is None else [(int(sender), int(receiver)) for sender, receiver in pairs]


def _as_known(call: CollectiveCall) -> tuple[str, int]:
    """Return the operation and payload to time; one we do not know sends its bytes on."""
    return (call.op, call.payload_bytes) if call.op in KNOWN else ("ppermute", call.wire_bytes)


def _timed(trace: Trace, clock: Clock) -> tuple[CallTime, ...]:
    kept = {id(call) for call in worst(trace.collectives)}
    timed = []
    seen: dict[object, Timing] = {}
    for at, call in enumerate(trace.collectives):
        pairs = permutation(call)
        # Layers repeat: one key for all that the clock looks at.
        sizes = (call.payload_bytes, call.group_size, call.wire_bytes)
        key = (call.op, call.mesh_axes, sizes, None if pairs is None else tuple(pairs))
        time = seen[key] if key in seen else seen.setdefault(key, clock.time(call))
        count = 1 if call.count is None else call.count
        timed.append(
            CallTime(
                at,
                time.seconds,
                count,
                call.mesh_axes,
                time.network,
                time.formula,
                id(call) in kept,
            )
        )
    return tuple(timed)


def _compute(trace: Trace, clock: Clock, dtype: str, share: float) -> tuple[float | None, str]:
    if trace.flops is None:
        return None, ""
    figure = clock.hardware.figure(rate_of(dtype), needed_for=f"needed for FLOPs in {dtype}")
    clock.used[figure.name] = figure
    return trace.flops / (figure.value * share), f"FLOPs / {figure.name}"


def rate_of(dtype: str) -> str:
    """Return the figure that says how fast products of this dtype are.

    >>> rate_of("bf16"), rate_of("float8_e4m3fn"), rate_of("int8")
    ('bf16_flops', 'fp8_flops', 'int8_flops')

    float32 counts as bfloat16: that is how JAX multiplies it by default on these chips.
    """
    name = parse_dtype(dtype).name
    if name.startswith("float8"):
        return "fp8_flops"
    if name in ("int8", "uint8"):
        return "int8_flops"
    return "bf16_flops"


def share_of_peak(value: float) -> float:
    """Return an efficiency as a number, or say what is wrong with it."""
    if not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise BadEfficiency(
            f"The efficiency is {brief(value)}.",
            fix="a share of the peak above 0 and at most 1, such as 0.4 for 40 %.",
        )
    return float(value)


def _check_axes(dcn: Sequence[str], mesh: Sizes) -> None:
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


def _network_notes(trace: Trace, clock: Clock) -> list[str]:
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


def _mesh_text(mesh: Sizes) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh)
