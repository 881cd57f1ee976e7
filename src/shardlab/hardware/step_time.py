"""The time of one step of a model on named hardware: operations, communication, waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from shardlab.hardware.operation_time import OperationTime


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
    """The seconds of a step: what the devices compute, what they communicate, and the schedule.

    Communication of parameters and gradients, which are known early or needed late, is overlapped
    with compute; communication of activations, which are needed at once, is exposed. While both
    run, each slows the other: `overlap_loss` is the fraction of the overlapped time that is lost.
    Collectives over different mesh axes run one after the other, as in the JAX scaling book.

    `error` is the relative error of the estimate that 90 % of published runs stay within.
    """

    flops: float  # of all devices, with recomputation
    model_flops: float  # without recomputation: the numerator of MFU
    peak_flops: float  # of all devices
    operations: tuple[OperationTime, ...]  # of one device, over all microbatches
    collectives: tuple[StepCollectiveTime, ...]
    bubble_seconds: float = 0.0  # a pipeline stage waits for others
    overhead_seconds: float = 0.0  # of a step: host, input, synchronization
    overlap_loss: float = 0.0
    error: float = 0.0
    unit: Literal["step", "token", "prefill"] = "step"
    framework: str = ""  # the software that is assumed

    @cached_property
    def busy_seconds(self) -> float:
        """The time of a step without communication and bubbles."""
        return sum(operation.total_seconds for operation in self.operations)

    @cached_property
    def memory_bound_seconds(self) -> float:
        """The part of `busy_seconds` in operations that are bound by memory bandwidth."""
        return sum(
            operation.total_seconds for operation in self.operations if operation.bound == "memory"
        )

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
    def slowed_seconds(self) -> float:
        """What compute and overlapped communication lose because both run at the same time."""
        return self.overlap_loss * min(self.busy_seconds, self.overlapped_seconds)

    @cached_property
    def expected(self) -> float:
        """The step time: compute with overlapped communication, exposed communication, waiting."""
        return (
            overlapped_time(self.busy_seconds, self.overlapped_seconds, self.overlap_loss)
            + self.exposed_seconds
            + self.bubble_seconds
            + self.overhead_seconds
        )

    @property
    def lower(self) -> float:
        return self.expected / (1 + self.error)

    @property
    def upper(self) -> float:
        return self.expected * (1 + self.error)

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
            **_field_values(self),
            "operations": [operation.to_json() for operation in self.operations],
            "collectives": [collective.to_json() for collective in self.collectives],
            "busy_seconds": self.busy_seconds,
            "communication_seconds": self.communication_seconds,
            "by_axis": self.by_axis(),
            "expected": self.expected,
            "lower": self.lower,
            "upper": self.upper,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepTime:
        names = {field.name for field in fields(cls)}
        values = {name: value for name, value in data.items() if name in names}
        return cls(
            **{
                **values,
                "operations": tuple(map(OperationTime.from_json, _operations_of(data))),
                "collectives": tuple(map(StepCollectiveTime.from_json, data["collectives"])),
            }
        )


def overlapped_time(busy: float, overlapped: float, loss: float) -> float:
    """Return the time of compute and of the communication that overlaps with it.

    >>> overlapped_time(10.0, 4.0, 0.25), overlapped_time(4.0, 10.0, 0.25)
    (11.0, 11.0)
    """
    return max(busy, overlapped) + loss * min(busy, overlapped)


def _field_values(step: StepTime) -> dict[str, Any]:
    return {field.name: getattr(step, field.name) for field in fields(step)}


def _operations_of(data: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the operations; advice of format version 2 has only their sum."""
    if "operations" in data:
        return tuple(data["operations"])
    seconds = max(data["compute_seconds"], data["reading_seconds"])
    is_reading = data["reading_seconds"] > data["compute_seconds"]
    return [
        {
            "name": "compute",
            "count": 1.0,
            "seconds": seconds,
            "flops": 0.0,
            "bound": "memory" if is_reading else "compute",
        }
    ]
