"""How long one step of a model takes on named hardware: its arithmetic, and what it exchanges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StepCollectiveTime:
    """Calls alike of one step: what is sent over which mesh axes, how often, and how long it takes.

    `payload_bytes` is the operand on one device, `seconds` the time of one call.
    """

    what: str  # "parameters, forward", "gradients", "tokens to their experts"
    axes: tuple[str, ...]
    op: str
    payload_bytes: int
    count: int
    seconds: float
    network: str  # ICI, DCN, NVLink, between nodes
    formula: str
    hides: bool = False  # can be sent while the devices compute

    @property
    def total_seconds(self) -> float:
        return self.seconds * self.count

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "axes": list(self.axes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepCollectiveTime:
        return cls(**{**data, "axes": tuple(data["axes"])})


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Seconds of arithmetic and of communication, what a step is expected to take, and its bounds.

    What can hide (parameters and gradients, which are known before or needed later) goes on behind
    the arithmetic; for the rest (activations, needed at once) the devices wait. With everything
    hidden a step takes `lower`, with nothing hidden `upper`. What goes over different mesh axes
    counts one after the other, as the scaling book does. Arithmetic waits for memory where reading
    takes longer.
    """

    flops: float  # of all devices, with what is computed again
    model_flops: float  # without: what MFU is a share of
    compute_seconds: float
    peak_flops: float  # of all devices
    exchanges: tuple[StepCollectiveTime, ...]
    reading_seconds: float = 0.0  # of what is read from memory once a step, where that counts

    @property
    def busy_seconds(self) -> float:
        """The time of a device that never waits for another."""
        return max(self.compute_seconds, self.reading_seconds)

    @cached_property
    def communication_seconds(self) -> float:
        return sum(each.total_seconds for each in self.exchanges)

    @cached_property
    def hidden_seconds(self) -> float:
        """What can be sent while the devices compute; beyond that time they wait for it."""
        return sum(each.total_seconds for each in self.exchanges if each.hides)

    @cached_property
    def exposed_seconds(self) -> float:
        """What the devices wait for."""
        return sum(each.total_seconds for each in self.exchanges if not each.hides)

    @property
    def expected(self) -> float:
        """What can hide does, behind compute or reading; the rest comes on top."""
        return max(self.busy_seconds, self.hidden_seconds) + self.exposed_seconds

    @property
    def lower(self) -> float:
        return max(self.busy_seconds, self.communication_seconds)

    @property
    def upper(self) -> float:
        return self.busy_seconds + self.communication_seconds

    def utilisation(self, seconds: float) -> float:
        """Return the model FLOPs utilisation (MFU) of a step that takes so long."""
        return self.model_flops / (self.peak_flops * seconds) if seconds else 0.0

    def by_axis(self, *, hides: bool | None = None) -> dict[str, float]:
        """Return the seconds of communication by mesh axes, most first; of a kind, or of both."""
        totals: dict[str, float] = {}
        for each in self.exchanges:
            if hides is not None and each.hides != hides:
                continue
            axes = ",".join(each.axes)
            totals[axes] = totals.get(axes, 0.0) + each.total_seconds
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def to_json(self) -> dict[str, Any]:
        return {
            "flops": self.flops,
            "model_flops": self.model_flops,
            "compute_seconds": self.compute_seconds,
            "peak_flops": self.peak_flops,
            "communication_seconds": self.communication_seconds,
            "by_axis": self.by_axis(),
            "expected": self.expected,
            "lower": self.lower,
            "upper": self.upper,
            "exchanges": [each.to_json() for each in self.exchanges],
            "reading_seconds": self.reading_seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepTime:
        return cls(
            flops=data["flops"],
            model_flops=data["model_flops"],
            compute_seconds=data["compute_seconds"],
            peak_flops=data["peak_flops"],
            exchanges=tuple(map(StepCollectiveTime.from_json, data["exchanges"])),
            reading_seconds=data["reading_seconds"],
        )
