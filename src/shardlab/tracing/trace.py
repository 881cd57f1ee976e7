"""The result of `trace`: the collective calls of a program, and their totals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardlab._text.units import bytes_text, count_text
from shardlab.collectives.call import CollectiveCall
from shardlab.findings.finding import Finding
from shardlab.hardware.estimate import Estimate
from shardlab.sharding.mesh import MeshSizes, mesh_text
from shardlab.tracing.observation import Memory, Observation

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, ConsoleOptions
    from rich.text import Text

    from shardlab.hardware.chips import Hardware

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Trace:
    """The collective calls of one program on one mesh, and the findings of the static checks."""

    program: str
    mesh: MeshSizes
    collectives: tuple[CollectiveCall, ...]
    findings: tuple[Finding, ...] = ()
    flops: int | None = None
    memory: Memory | None = None
    notes: tuple[str, ...] = ()
    timing: Estimate | None = None  # the time on named hardware, shown with the calls

    def by_kind(self) -> dict[str, int]:
        """Return the bytes that one device sends, by operation."""
        return self._totals(lambda call: call.op)

    def by_axis(self) -> dict[str, int]:
        """Return the bytes that one device sends, by mesh axes ('data', or 'data,model')."""
        return self._totals(lambda call: ",".join(call.mesh_axes))

    def by_source(self) -> dict[str, int]:
        """Return the bytes that one device sends, by source line."""
        return self._totals(lambda call: str(call.source))

    @property
    def wire_bytes(self) -> int:
        """Return the bytes one device sends.

        Counts the most expensive branch of each cond, and one iteration of each while loop.
        """
        return sum(self.by_kind().values())

    def _totals(self, key: Callable[[CollectiveCall], str]) -> dict[str, int]:
        totals: dict[str, int] = {}
        for call in most_expensive_branches(self.collectives):
            count = 1 if call.count is None else call.count
            totals[key(call)] = totals.get(key(call), 0) + count * call.wire_bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def estimate(
        self,
        hardware: str | Path | Hardware,
        *,
        dcn: Sequence[str] = (),
        efficiency: float = 1.0,
        compute_efficiency: float | None = None,
        network_efficiency: float | None = None,
        dtype: str = "bf16",
        figures: Mapping[str, float] | None = None,
    ) -> Estimate:
        """Return how long it takes on hardware by name ("tpu-v5p", "h100") or by a TOML file.

        `dcn` names the mesh axes that cross pods (on GPUs: nodes); `figures` replaces figures of
        the table; an efficiency is the share of the peak that is reached.
        """
        from shardlab.tracing.trace_estimate import estimate_trace

        return estimate_trace(
            self,
            hardware,
            dcn=dcn,
            efficiency=efficiency,
            compute_efficiency=compute_efficiency,
            network_efficiency=network_efficiency,
            dtype=dtype,
            figures=figures,
        )

    def on(self, hardware: str | Path | Hardware, **options: Any) -> Trace:
        """Return this trace with its time on hardware, which is then shown and drawn with it.

        Options are those of `estimate_trace`.
        """
        return replace(self, timing=self.estimate(hardware, **options))

    def timeline_svg(self, estimate: Estimate | None = None) -> str:
        """Return the calls on lanes of mesh axes: by time with an estimate, by bytes without."""
        from shardlab.tracing.timeline import timeline_svg

        return timeline_svg(self, estimate or self.timing)

    def timeline_text(self, width: int = 100, estimate: Estimate | None = None) -> str:
        from shardlab.tracing.timeline import timeline_text

        return timeline_text(self, width, estimate or self.timing)

    def traffic_svg(self) -> str:
        """Return a bar for each mesh axis, as long as the bytes that one device sends over it."""
        from shardlab.tracing.traffic_bars import traffic_svg

        return traffic_svg(self)

    def traffic_text(self, width: int = 100) -> str:
        from shardlab.tracing.traffic_bars import traffic_text

        return traffic_text(self, width)

    def steps_svg(self, call: int) -> str:
        """Return which device sends what to which, step by step, in `collectives[call]`."""
        from shardlab.tracing.ring_steps_picture import steps_svg

        return steps_svg(self.collectives[call], self.mesh)

    def steps_text(self, call: int, width: int = 100) -> str:
        from shardlab.tracing.ring_steps_picture import steps_text

        return steps_text(self.collectives[call], self.mesh, width)

    def __repr__(self) -> str:
        """Return one line; `print` shows all of it."""
        mesh = mesh_text(self.mesh) if self.mesh else "no mesh"
        n_calls = count_text(len(self.collectives), "call")
        return f"<Trace of {self.program} on {mesh}: {n_calls}, {bytes_text(self.wire_bytes)}>"

    def __str__(self) -> str:
        from shardlab.tracing.trace_text import trace_text

        return trace_text(self, estimate=self.timing)

    def _repr_html_(self) -> str:
        from shardlab.tracing.trace_text import trace_html

        return trace_html(self, self.timing)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.tracing.trace_text import trace_rich

        yield trace_rich(self, options.max_width, self.timing)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "program": self.program,
            "mesh": dict(self.mesh),
            "collectives": [call.to_json() for call in self.collectives],
            "totals": {
                "wire_bytes": self.wire_bytes,
                "by_kind": self.by_kind(),
                "by_axis": self.by_axis(),
                "by_source": self.by_source(),
            },
            "findings": [finding.to_json() for finding in self.findings],
            "flops": self.flops,
            "memory": self.memory.to_json() if self.memory else None,
            "notes": list(self.notes),
            "estimate": self.timing.to_json() if self.timing else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trace:
        return cls(
            program=data["program"],
            mesh=tuple(data["mesh"].items()),
            collectives=tuple(map(CollectiveCall.from_json, data["collectives"])),
            findings=tuple(map(Finding.from_json, data["findings"])),
            flops=data["flops"],
            memory=Memory.from_json(data["memory"]) if data["memory"] else None,
            notes=tuple(data["notes"]),
            timing=Estimate.from_json(data["estimate"]) if data.get("estimate") else None,
        )


def make_trace(observation: Observation, findings: Sequence[Finding]) -> Trace:
    """Return the trace of an observed program."""
    return Trace(
        program=observation.program,
        mesh=observation.mesh,
        collectives=observation.calls,
        findings=tuple(findings),
        flops=observation.flops,
        memory=observation.memory,
        notes=observation.notes,
    )


def most_expensive_branches(calls: Iterable[CollectiveCall]) -> list[CollectiveCall]:
    """Return the calls that count: of each cond only the branch that sends most."""
    counted = list(calls)
    # Nested conds: an id always has the same depth.
    depths = {scope.id: depth for call in counted for depth, scope in enumerate(call.within)}
    conds = {scope.id for call in counted for scope in call.within if scope.kind == "cond"}
    # Innermost first: the cost of an outer branch includes the most expensive inner one only.
    for cond in sorted(conds, key=lambda scope_id: -depths[scope_id]):
        bytes_by_branch: dict[int, int] = {}
        for call in counted:
            for scope in call.within:
                if scope.id == cond:
                    n_bytes = call.wire_bytes * (call.count or 1)
                    branch = scope.branch or 0
                    bytes_by_branch[branch] = bytes_by_branch.get(branch, 0) + n_bytes
        largest = max(bytes_by_branch, key=lambda branch: bytes_by_branch[branch])
        counted = [
            call
            for call in counted
            if all(scope.id != cond or scope.branch == largest for scope in call.within)
        ]
    return counted
