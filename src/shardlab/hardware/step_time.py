"""The time of one step of a model on named hardware: compute, memory reads and communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True, kw_only=True)
class StepCollectiveTime:
    """Equal collective calls of one step, and their time.

    `payload_bytes` is the operand on one device, `seconds` the time of one call.
    `is_overlapped`: the call can be overlapped with compute.
    """

    what: str  # "parameters, forward", "gradients", "tokens to their experts"
    axes: tuple[str, ...]
    op: str
    payload_bytes: int
    count: int
    seconds: float
    network: str  # ICI, DCN, NVLink, between nodes
    formula: str
    is_overlapped: bool = False

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
    """Seconds of compute and communication of a step, its expected time, and its bounds.

    Communication of parameters and gradients, which are known early or needed late, is overlapped
    with compute; communication of activations, which are needed at once, is exposed. `lower` is
    the step time if all communication is overlapped, `upper` if all of it is exposed. Collectives
    over different mesh axes run one after the other, as in the JAX scaling book. If reading the
    memory takes longer than compute, it replaces compute.
    """

    flops: float  # of all devices, with recomputation
    model_flops: float  # without recomputation: the numerator of MFU
    compute_seconds: float
    peak_flops: float  # of all devices
    collectives: tuple[StepCollectiveTime, ...]
    reading_seconds: float = 0.0  # memory read once per step (decoding); 0 in training

    @property
    def busy_seconds(self) -> float:
        """The time of a step without communication."""
        return max(self.compute_seconds, self.reading_seconds)

    @cached_property
    def communication_seconds(self) -> float:
        return sum(collective.total_seconds for collective in self.collectives)

    @cached_property
    def overlapped_seconds(self) -> float:
        """Communication that overlaps with compute, as far as compute lasts."""
        return sum(
            collective.total_seconds for collective in self.collectives if collective.is_overlapped
        )

    @cached_property
    def exposed_seconds(self) -> float:
        """Communication during which the devices are idle."""
        return sum(
            collective.total_seconds
            for collective in self.collectives
            if not collective.is_overlapped
        )

    @property
    def expected(self) -> float:
        """The step time with overlap: the longer of compute and overlapped communication, plus
        the exposed communication."""
        # Overlapped communication that lasts longer than compute is waited for as well.
        return max(self.busy_seconds, self.overlapped_seconds) + self.exposed_seconds

    @property
    def lower(self) -> float:
        return max(self.busy_seconds, self.communication_seconds)

    @property
    def upper(self) -> float:
        return self.busy_seconds + self.communication_seconds

    def utilization(self, seconds: float) -> float:
        """Return the model FLOPs utilization (MFU) of a step that takes `seconds`."""
        return self.model_flops / (self.peak_flops * seconds) if seconds else 0.0

    def by_axis(self, *, is_overlapped: bool | None = None) -> dict[str, float]:
        """Return the seconds of communication by mesh axes, most first.

        `is_overlapped` selects overlapped (True) or exposed (False) communication; None is both.
        """
        totals: dict[str, float] = {}
        for collective in self.collectives:
            if is_overlapped is not None and collective.is_overlapped != is_overlapped:
                continue
            axes = ",".join(collective.axes)
            totals[axes] = totals.get(axes, 0.0) + collective.total_seconds
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
            "collectives": [collective.to_json() for collective in self.collectives],
            "reading_seconds": self.reading_seconds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepTime:
        return cls(
            flops=data["flops"],
            model_flops=data["model_flops"],
            compute_seconds=data["compute_seconds"],
            peak_flops=data["peak_flops"],
            collectives=tuple(map(StepCollectiveTime.from_json, data["collectives"])),
            reading_seconds=data["reading_seconds"],
        )
