"""Seconds of one step: what it computes and what it exchanges, on hardware and a mesh laid on it.

>>> from shardlab.hardware.chips import parse_hardware
>>> stopwatch = StepTimer(parse_hardware("tpu-v5p"))
>>> gather = StepCollective("parameters, forward", ("fsdp",), "all_gather", 10**6, 80)
>>> laid, [timed] = stopwatch.quickest((("fsdp", 512),), [gather])
>>> laid.words, timed.formula
('fsdp 8x8x8', '3 rings: V / (2 link x 3)')

Every collective is timed by the `CollectiveTimer` that also times traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from shardlab.collectives.call import CollectiveCall
from shardlab.hardware.chips import Figure, Hardware
from shardlab.hardware.collective_time import CollectiveTimer, flops_figure
from shardlab.hardware.mesh_placement import CollectiveRoute, MeshPlacement, mesh_placements
from shardlab.hardware.step_time import StepCollectiveTime
from shardlab.hardware.timing import Timing
from shardlab.sharding.mesh import MeshSizes


@dataclass(frozen=True, kw_only=True)
class StepCollective:
    """Calls alike of one step; `payload_bytes` is the operand on one device.

    What `hides` can be sent while the devices compute; all else is waited for.
    """

    what: str
    axes: tuple[str, ...]
    op: str
    payload_bytes: int
    count: int
    hides: bool = False


@dataclass
class CollectiveSpan:
    """Exchanges on a mesh laid in each way: seconds that hide and that do not, and the times."""

    exchanges: tuple[StepCollective, ...]
    totals: list[tuple[float, float, MeshPlacement]]
    timed: dict[int, tuple[StepCollectiveTime, ...]] = field(default_factory=dict)


@dataclass(kw_only=True)
class StepTimer:
    """Times steps on one kind of hardware, and remembers what it has timed and with which figures.

    The efficiency is the share of the network's peak that is reached.
    """

    hardware: Hardware
    efficiency: float = 1.0
    used: dict[str, Figure] = field(default_factory=dict)
    _seen: dict[tuple[str, int, CollectiveRoute], Timing] = field(default_factory=dict)
    _laid: dict[MeshSizes, tuple[MeshPlacement, ...]] = field(default_factory=dict)
    _sent: dict[object, CollectiveSpan] = field(default_factory=dict)

    def quickest(
        self, mesh: MeshSizes, exchanges: Sequence[StepCollective], busy: float = 0.0
    ) -> tuple[MeshPlacement, tuple[StepCollectiveTime, ...]]:
        """Return how the mesh is best laid on the network, and the times of the exchanges there."""
        return self.choose(self.sent(mesh, exchanges), busy)

    def sent(self, mesh: MeshSizes, exchanges: Sequence[StepCollective]) -> CollectiveSpan:
        """Return what the exchanges take on the mesh in each way to lay it."""
        key = (mesh, tuple(exchanges))  # remat policies send alike
        if key not in self._sent:
            totals = [(*self._both(exchanges, each), each) for each in self._layings(mesh)]
            self._sent[key] = CollectiveSpan(key[1], totals)
        return self._sent[key]

    def choose(
        self, sent: CollectiveSpan, busy: float
    ) -> tuple[MeshPlacement, tuple[StepCollectiveTime, ...]]:
        """Return the way that gives the quickest step, and the times of the exchanges there.

        The devices are busy for so many seconds, behind which some exchanges hide.
        """
        at = 0
        if len(sent.totals) > 1:
            times = [(max(busy, hid) + waited, hid + waited) for hid, waited, _ in sent.totals]
            at = times.index(min(times))
        laid = sent.totals[at][2]
        if at not in sent.timed:
            sent.timed[at] = tuple(self.time(each, laid) for each in sent.exchanges)
        return laid, sent.timed[at]

    def time(self, exchange: StepCollective, laid: MeshPlacement) -> StepCollectiveTime:
        """Return the time of one exchange over mesh axes laid like this."""
        timed = self._timings(exchange, laid)
        words = [
            timing.formula + (f", x {sharing} groups that share the links" if sharing > 1 else "")
            for timing, sharing in timed
        ]
        return StepCollectiveTime(
            what=exchange.what,
            axes=exchange.axes,
            op=exchange.op,
            payload_bytes=exchange.payload_bytes,
            count=exchange.count,
            seconds=sum(timing.seconds * sharing for timing, sharing in timed),
            network=" and ".join(dict.fromkeys(timing.network for timing, _ in timed)),
            formula="; then ".join(words) or "alone: nothing is sent",
            hides=exchange.hides,
        )

    def _both(
        self, exchanges: Sequence[StepCollective], laid: MeshPlacement
    ) -> tuple[float, float]:
        """Return the seconds of what can hide, and of what is waited for."""
        totals = [0.0, 0.0]
        for each in exchanges:
            for timing, sharing in self._timings(each, laid):
                totals[not each.hides] += timing.seconds * sharing * each.count
        return totals[0], totals[1]

    def _timings(self, exchange: StepCollective, laid: MeshPlacement) -> list[tuple[Timing, int]]:
        """Return the time of each way, one after the other, and how many groups share its links.

        Of ways that follow one another each counts as if it carried the whole.
        """
        ways, op, payload = laid.ways(exchange.axes), exchange.op, exchange.payload_bytes
        if op != "all_gather" or len(ways) == 1:
            return [(self._timing(op, payload, way), way.sharing) for way in ways]
        gathered = payload * prod(way.group_size for way in ways)
        return [(self._timing(op, gathered // way.group_size, way), way.sharing) for way in ways]

    def compute(self, flops: float, n_devices: int, efficiency: float) -> float:
        """Return the seconds of so many FLOPs in bfloat16, shared evenly by the devices."""
        return flops / (self.peak(n_devices) * efficiency)

    def peak(self, n_devices: int) -> float:
        """Return the FLOP/s of so many devices."""
        figure = self.hardware.figure(flops_figure("bf16"), needed_for="needed for FLOPs in bf16")
        self.used[figure.name] = figure
        return figure.value * n_devices

    def reading(self, n_bytes: int) -> float:
        """Return the seconds in which a device reads so many bytes from its memory."""
        figure = self.hardware.figure("hbm_bandwidth", needed_for="needed to read the parameters")
        self.used[figure.name] = figure
        return n_bytes / figure.value

    def _layings(self, mesh: MeshSizes) -> tuple[MeshPlacement, ...]:
        if mesh not in self._laid:
            self._laid[mesh] = mesh_placements(mesh, self.hardware)
        return self._laid[mesh]

    def _timing(self, op: str, payload: int, way: CollectiveRoute) -> Timing:
        key = (op, payload, way)
        if key not in self._seen:
            call = CollectiveCall(
                op=op,
                mesh_axes=way.axes,
                shape=(),
                dtype="",
                payload_bytes=payload,
                wire_bytes=0,
                count=None,
                phase="forward",
                group_size=way.group_size,
            )
            clock = CollectiveTimer(
                hardware=self.hardware,
                mesh=way.mesh,
                dcn=way.dcn,
                efficiency=self.efficiency,
                used=self.used,
            )
            self._seen[key] = clock.time(call)
        return self._seen[key]
