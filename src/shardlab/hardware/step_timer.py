"""Times the collectives of one step on a mesh, at the fastest placement of the mesh on hardware.

>>> from shardlab.hardware.chips import parse_hardware
>>> timer = StepTimer(hardware=parse_hardware("tpu-v5p"))
>>> gather = StepCollective(
...     what="parameters", axes=("fsdp",), op="all_gather", payload_bytes=10**6, count=80
... )
>>> placement, [time] = timer.fastest_placement((("fsdp", 512),), [gather])
>>> placement.description, time.formula
('fsdp 8x8x8', '3 rings: V / (2 link x 3)')

Every collective is timed by the `CollectiveTimer` that also times traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from shardlab.collectives.call import CollectiveCall
from shardlab.hardware.chips import Figure, Hardware
from shardlab.hardware.collective_time import CollectiveTimer
from shardlab.hardware.mesh_placement import CollectiveRoute, MeshPlacement, mesh_placements
from shardlab.hardware.step_time import StepCollectiveTime, overlapped_time
from shardlab.hardware.timing import Timing
from shardlab.sharding.mesh import MeshSizes


@dataclass(frozen=True, kw_only=True)
class StepCollective:
    """Equal calls of one step; `payload_bytes` is the operand on one device.

    `is_overlapped`: the call can be overlapped with compute; all other communication is exposed.
    """

    what: str
    axes: tuple[str, ...]
    op: str
    payload_bytes: int
    count: int
    is_overlapped: bool = False


@dataclass
class CollectiveTimes:
    """The collectives of a step on every placement of a mesh.

    `totals` has the overlapped and the exposed seconds of each placement. The times of the single
    collectives are computed only for a placement that is chosen, and stored by its index.
    """

    collectives: tuple[StepCollective, ...]
    totals: list[tuple[float, float, MeshPlacement]]
    times_by_placement: dict[int, tuple[StepCollectiveTime, ...]] = field(default_factory=dict)


@dataclass(kw_only=True)
class StepTimer:
    """Times steps on one kind of hardware; `used` collects the figures it needed.

    `efficiency` is the reached fraction of the network's peak bandwidth; None is the calibrated one
    of the hardware.
    """

    hardware: Hardware
    efficiency: float | None = None
    used: dict[str, Figure] = field(default_factory=dict)
    # A search times hundreds of thousands of candidates, which share most meshes and collectives.
    _timing_cache: dict[tuple[str, int, CollectiveRoute], Timing] = field(default_factory=dict)
    _placement_cache: dict[MeshSizes, tuple[MeshPlacement, ...]] = field(default_factory=dict)
    _times_cache: dict[object, CollectiveTimes] = field(default_factory=dict)

    def fastest_placement(
        self, mesh: MeshSizes, collectives: Sequence[StepCollective], busy: float = 0.0
    ) -> tuple[MeshPlacement, tuple[StepCollectiveTime, ...]]:
        """Return the fastest placement of the mesh, and the times of the collectives on it."""
        return self.choose_placement(self.time_collectives(mesh, collectives), busy)

    def time_collectives(
        self, mesh: MeshSizes, collectives: Sequence[StepCollective]
    ) -> CollectiveTimes:
        """Return the total time of the collectives on each placement of the mesh."""
        key = (mesh, tuple(collectives))  # candidates that differ only in remat send the same
        if key not in self._times_cache:
            totals = [
                (*self._total_seconds(collectives, placement), placement)
                for placement in self._placements(mesh)
            ]
            self._times_cache[key] = CollectiveTimes(key[1], totals)
        return self._times_cache[key]

    def choose_placement(
        self, sent: CollectiveTimes, busy: float, overlap_loss: float = 0.0
    ) -> tuple[MeshPlacement, tuple[StepCollectiveTime, ...]]:
        """Return the placement with the fastest step, and the times of the collectives on it.

        `busy` is the time of the operations that communication overlaps with.
        """
        index = 0
        if len(sent.totals) > 1:
            # Ties in the step time go to the placement with less communication in total.
            step_times = [
                (overlapped_time(busy, overlapped, overlap_loss) + exposed, overlapped + exposed)
                for overlapped, exposed, _ in sent.totals
            ]
            index = step_times.index(min(step_times))
        placement = sent.totals[index][2]
        if index not in sent.times_by_placement:
            sent.times_by_placement[index] = tuple(
                self.time(collective, placement) for collective in sent.collectives
            )
        return placement, sent.times_by_placement[index]

    def time(self, collective: StepCollective, placement: MeshPlacement) -> StepCollectiveTime:
        """Return the time of one collective on a placement."""
        timings = self._route_timings(collective, placement)
        formulas = [
            timing.formula + (f", x {sharing} groups that share the links" if sharing > 1 else "")
            for timing, sharing in timings
        ]
        return StepCollectiveTime(
            what=collective.what,
            axes=collective.axes,
            op=collective.op,
            payload_bytes=collective.payload_bytes,
            count=collective.count,
            seconds=sum(timing.seconds * sharing for timing, sharing in timings),
            network=" and ".join(dict.fromkeys(timing.network for timing, _ in timings)),
            formula="; then ".join(formulas) or "one device: nothing is sent",
            is_overlapped=collective.is_overlapped,
        )

    def _total_seconds(
        self, collectives: Sequence[StepCollective], placement: MeshPlacement
    ) -> tuple[float, float]:
        """Return the overlapped and the exposed seconds of all collectives."""
        overlapped = exposed = 0.0
        for collective in collectives:
            for timing, sharing in self._route_timings(collective, placement):
                seconds = timing.seconds * sharing * collective.count
                if collective.is_overlapped:
                    overlapped += seconds
                else:
                    exposed += seconds
        return overlapped, exposed

    def _route_timings(
        self, collective: StepCollective, placement: MeshPlacement
    ) -> list[tuple[Timing, int]]:
        """Return the time of each route in sequence, with the groups that share its links."""
        routes = placement.routes(collective.axes)
        op, payload = collective.op, collective.payload_bytes
        if op != "all_gather" or len(routes) == 1:
            return [(self._time_route(op, payload, route), route.sharing) for route in routes]
        # The operand grows from route to route. Each is timed as if it gathered the full result,
        # which is right for the last route and an upper bound for those before it.
        gathered = payload * prod(route.group_size for route in routes)
        return [
            (self._time_route(op, gathered // route.group_size, route), route.sharing)
            for route in routes
        ]

    def _placements(self, mesh: MeshSizes) -> tuple[MeshPlacement, ...]:
        if mesh not in self._placement_cache:
            self._placement_cache[mesh] = mesh_placements(mesh, self.hardware)
        return self._placement_cache[mesh]

    def _time_route(self, op: str, payload: int, route: CollectiveRoute) -> Timing:
        key = (op, payload, route)
        if key not in self._timing_cache:
            call = CollectiveCall(
                op=op,
                mesh_axes=route.axes,
                shape=(),
                dtype="",
                payload_bytes=payload,
                wire_bytes=0,
                count=None,
                phase="forward",
                group_size=route.group_size,
            )
            timer = CollectiveTimer(
                hardware=self.hardware,
                mesh=route.mesh,
                dcn=route.dcn,
                efficiency=self._reached_fraction,
                used=self.used,
            )
            timing = timer.time(call)
            if timing.seconds:
                timing = replace(timing, seconds=timing.seconds + self._call_latency)
            self._timing_cache[key] = timing
        return self._timing_cache[key]

    @cached_property
    def _reached_fraction(self) -> float:
        if self.efficiency is not None:
            return self.efficiency
        return self._calibrated_figure("network_efficiency", default=1.0)

    @cached_property
    def _call_latency(self) -> float:
        """The time to start a collective, whatever its size."""
        return self._calibrated_figure("collective_latency", default=0.0)

    def _calibrated_figure(self, name: str, *, default: float) -> float:
        figure = self.hardware.figures.get(name)
        if figure is None:
            return default
        self.used[name] = figure
        return figure.value
