"""Times one collective call on a mesh and hardware: on a torus, in a switched network, over DCN."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod

from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.wire import REDUCTIONS
from shardlab.errors import InvalidEfficiency, short_repr
from shardlab.hardware.chips import Figure, Hardware
from shardlab.hardware.nccl import NcclNetwork, nccl_time
from shardlab.hardware.switched import dcn_time, max_crossing_senders, spans_of, switched_time
from shardlab.hardware.timing import Timing
from shardlab.hardware.torus import Side, die_time, torus_time
from shardlab.sharding.dtype import parse_dtype
from shardlab.sharding.mesh import MeshSizes

TIMED_OPS = (*REDUCTIONS, "all_gather", "psum_scatter", "all_to_all", "ppermute", "pbroadcast")


@dataclass(kw_only=True)
class CollectiveTimer:
    """Times calls on one mesh; `used` collects the hardware figures that it needed."""

    hardware: Hardware
    mesh: MeshSizes
    dcn: tuple[str, ...]
    efficiency: float
    used: dict[str, Figure] = field(default_factory=dict)

    def bandwidth(self, name: str, call: CollectiveCall) -> float:
        axes = ", ".join(f"'{axis}'" for axis in call.mesh_axes)
        figure = self.hardware.figure(name, needed_for=f"needed for {call.op} over {axes}")
        self.used[name] = figure
        return figure.value * self.efficiency

    def hop_latency(self) -> float:
        # Not an error if unpublished, unlike a bandwidth: `Estimate.has_latency` reports it.
        figure = self.hardware.figures.get("hop_latency")
        if figure is None:
            return 0.0
        self.used["hop_latency"] = figure
        return figure.value

    def time(self, call: CollectiveCall) -> Timing:
        """Return the time of one execution of a call."""
        if call.group_size <= 1:
            return Timing(0.0, "one device: nothing is sent", "")
        if self.hardware.network == "switch":
            return self._time_switched(call)
        return self._time_on_torus(call)

    def _time_switched(self, call: CollectiveCall) -> Timing:
        # Devices fill nodes in mesh order, except that axes in `dcn` are outermost.
        order = sorted(self.mesh, key=lambda axis: axis[0] not in self.dcn)
        spans = spans_of(tuple(order), call.mesh_axes, self.hardware.domain, call.group_size)
        inside = self.bandwidth("nvlink_bandwidth", call) if spans.in_node > 1 else 0.0
        leaves = spans.n_nodes > 1 or spans.in_node == 1
        egress = self.bandwidth("node_egress", call) if leaves else 0.0
        pairs = permutation_pairs(call)
        crossing = (
            max_crossing_senders(pairs, lambda device: device // spans.in_node)
            if pairs is not None
            else None
        )
        op, payload = _timed_operation(call)
        if self.hardware.nccl is None:
            return switched_time(
                op, payload, spans, inside=inside, egress=egress, crossing=crossing
            )
        network = NcclNetwork(
            name=self.hardware.nccl,
            nvlink=inside or inf,  # one GPU per node: not used
            adapter=egress / (spans.sharing * spans.in_node),
            node=self.hardware.domain,
            hop=self.hop_latency(),
        )
        return nccl_time(op, payload, spans, network, crossing)

    def _time_on_torus(self, call: CollectiveCall) -> Timing:
        outer, sides, in_chip = self._torus_sides(call)
        op, payload = _timed_operation(call)
        levels = []
        if sides:
            # Over DCN first: the gather inside a slice then has `outer` times the payload.
            part = payload * outer if op == "all_gather" else payload
            if op not in ("all_gather", "all_to_all"):
                part = -(-part // in_chip)  # reduced in the chip first; each device sends its part
            # Pairs number the devices of all slices, so they say nothing about one.
            pairs = None if outer > 1 else permutation_pairs(call)
            if pairs is not None and in_chip > 1:
                pairs = [(sender // in_chip, receiver // in_chip) for sender, receiver in pairs]
            levels.append(
                torus_time(
                    op,
                    part,
                    sides,
                    link=self.bandwidth("link_bandwidth", call),
                    hop=self.hop_latency(),
                    torus_axes=self.hardware.torus_axes,
                    pairs=pairs,
                )
            )
        if in_chip > 1:
            die = self.bandwidth("die_bandwidth", call)
            levels.append(die_time(op, payload, call.group_size, in_chip, die))
        if outer > 1:
            inside = prod(side.size for side in sides) * in_chip
            dcn = self.bandwidth("dcn_bandwidth", call)
            levels.append(dcn_time(op, payload, inside, outer, dcn))
        # The levels overlap, so the slower one counts (scaling book, gpus.md).
        return max(levels, key=lambda level: level.seconds)

    def _torus_sides(self, call: CollectiveCall) -> tuple[int, list[Side], int]:
        """Return what a call spans: slices, torus sides inside a slice, devices of a chip."""
        sizes = {name: size for name, size in self.mesh if name in call.mesh_axes and size > 1}
        if call.group_size != prod(sizes.values()):
            # axis_index_groups: a part of a mesh axis has no wraparound link
            return 1, [Side(call.group_size, is_ring=False)], 1
        n_slice = prod(size for name, size in self.mesh if name not in self.dcn)
        outer = prod(size for name, size in sizes.items() if name in self.dcn)
        in_chip, in_slice = 1, {name: sizes[name] for name in sizes if name not in self.dcn}
        chip_axis = self._chip_axis
        if chip_axis in in_slice:
            in_chip = self.hardware.devices_per_chip
            in_slice[chip_axis] //= in_chip
        sides = [
            Side(size, self.hardware.makes_ring(size, n_slice))
            for size in in_slice.values()
            if size > 1
        ]
        return outer, sides, in_chip

    @cached_property
    def _chip_axis(self) -> str | None:
        """The mesh axis along which the devices of one chip are: the innermost one.

        None if a chip is one device, or if the link between its devices is not published.
        """
        n_in_chip = self.hardware.devices_per_chip
        if n_in_chip == 1 or "die_bandwidth" not in self.hardware.figures:
            return None
        axes = [(name, size) for name, size in self.mesh if name not in self.dcn and size > 1]
        return next((name for name, size in reversed(axes) if size % n_in_chip == 0), None)


def permutation_pairs(call: CollectiveCall) -> list[tuple[int, int]] | None:
    """Return the (sender, receiver) pairs of a ppermute, if the trace has them."""
    if call.op != "ppermute":
        return None
    pairs = call.details.get("pairs")
    return None if pairs is None else [(int(sender), int(receiver)) for sender, receiver in pairs]


def _timed_operation(call: CollectiveCall) -> tuple[str, int]:
    """Return the operation and payload to time; an unknown one counts as a ppermute."""
    return (call.op, call.payload_bytes) if call.op in TIMED_OPS else ("ppermute", call.wire_bytes)


def flops_figure(dtype: str) -> str:
    """Return the name of the FLOP/s figure for matrix products of this dtype.

    >>> flops_figure("bf16"), flops_figure("float8_e4m3fn"), flops_figure("int8")
    ('bf16_flops', 'fp8_flops', 'int8_flops')

    float32 counts as bfloat16: JAX's default matmul precision uses bfloat16 passes on these chips.
    """
    name = parse_dtype(dtype).name
    if name.startswith("float8"):
        return "fp8_flops"
    if name in ("int8", "uint8"):
        return "int8_flops"
    return "bf16_flops"


def parse_efficiency(value: float) -> float:
    """Return an efficiency as a float; raises `InvalidEfficiency`."""
    if not isinstance(value, (int, float)) or not 0 < value <= 1:
        raise InvalidEfficiency(
            f"The efficiency is {short_repr(value)}.",
            fix="a fraction of the peak above 0 and at most 1, such as 0.4 for 40 %.",
        )
    return float(value)
