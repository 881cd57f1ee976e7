"""The estimate: the time of a traced program on named hardware, with formulas and figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text


@dataclass(frozen=True, kw_only=True)
class FigureUsed:
    """One hardware figure that an estimate uses, with its source."""

    name: str
    value: float
    unit: str
    source: str

    def to_json(self) -> dict[str, Any]:
        return {**vars(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FigureUsed:
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class CallTime:
    """The time of one collective call of a trace.

    `is_counted` is False in a branch of a cond that is not the slowest one.
    """

    call: int  # its index in Trace.collectives
    seconds: float  # of one execution
    count: int  # executions; 1 if the number is unknown
    axes: tuple[str, ...]
    network: str  # ICI, DCN, NVLink, between nodes
    formula: str
    is_counted: bool = True

    @property
    def total_seconds(self) -> float:
        return self.seconds * self.count if self.is_counted else 0.0

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "axes": list(self.axes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CallTime:
        return cls(**{**data, "axes": tuple(data["axes"])})


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds of compute and communication, and the bounds of a step.

    `lower` is the step time if all communication is overlapped with compute: the longer of the two.
    `upper` is the step time if all communication is exposed: their sum.
    """

    hardware: str
    calls: tuple[CallTime, ...]
    compute_seconds: float | None  # None if the FLOPs are unknown
    figures: tuple[FigureUsed, ...]
    compute_formula: str = ""
    compute_efficiency: float = 1.0
    network_efficiency: float = 1.0
    notes: tuple[str, ...] = ()
    library: str = ""  # "NCCL": collectives are timed by its model; otherwise at peak bandwidth

    @property
    def communication_seconds(self) -> float:
        return sum(call.total_seconds for call in self.calls)

    @property
    def has_latency(self) -> bool:
        """Whether the communication time includes hop latency, or there is no communication."""
        if not self.communication_seconds:
            return True
        # `figures` lists only what was used, so its presence means that latency was counted.
        return any(figure.name == "hop_latency" for figure in self.figures)

    @property
    def lower(self) -> float:
        return max(self.compute_seconds or 0.0, self.communication_seconds)

    @property
    def upper(self) -> float:
        return (self.compute_seconds or 0.0) + self.communication_seconds

    def by_axis(self) -> dict[str, float]:
        """Return the seconds of communication by mesh axes, most first."""
        totals: dict[str, float] = {}
        for call in self.calls:
            axes = ",".join(call.axes)
            totals[axes] = totals.get(axes, 0.0) + call.total_seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    @property
    def verdict(self) -> str:
        """Return "compute-bound", or "communication-bound" with the mesh axes that take longest."""
        if self.compute_seconds is None:
            return "communication only: FLOPs are unknown"
        if self.compute_seconds >= self.communication_seconds:
            return "compute-bound"
        return f"communication-bound, by {next(iter(self.by_axis()))!r}"

    def __str__(self) -> str:
        from shardlab.hardware.estimate_text import estimate_text

        return estimate_text(self)

    def _repr_html_(self) -> str:
        from shardlab.hardware.estimate_text import estimate_html

        return estimate_html(self)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from shardlab.hardware.estimate_text import estimate_rich

        yield estimate_rich(self, options.max_width)

    def to_json(self) -> dict[str, Any]:
        return {
            "hardware": self.hardware,
            "compute_seconds": self.compute_seconds,
            "compute_formula": self.compute_formula,
            "communication_seconds": self.communication_seconds,
            "by_axis": self.by_axis(),
            "lower": self.lower,
            "upper": self.upper,
            "verdict": self.verdict,
            "compute_efficiency": self.compute_efficiency,
            "network_efficiency": self.network_efficiency,
            "calls": [call.to_json() for call in self.calls],
            "figures": [figure.to_json() for figure in self.figures],
            "notes": list(self.notes),
            "library": self.library,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Estimate:
        return cls(
            hardware=data["hardware"],
            calls=tuple(map(CallTime.from_json, data["calls"])),
            compute_seconds=data["compute_seconds"],
            figures=tuple(map(FigureUsed.from_json, data["figures"])),
            compute_formula=data["compute_formula"],
            compute_efficiency=data["compute_efficiency"],
            network_efficiency=data["network_efficiency"],
            notes=tuple(data["notes"]),
            library=data.get("library", ""),
        )
