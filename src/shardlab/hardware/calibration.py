"""A calibration point: the measured time of one step on real devices beside its estimate.

`shardlab launch --calibration FILE` writes one; `--calibration FILE` of `shardlab trace` reads it,
and divides the hardware's peak figures by as much as the measured step was slower.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardlab.errors import InvalidCalibration

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class CalibrationPoint:
    """One measured step."""

    program: str
    mesh: tuple[tuple[str, int], ...]
    n_processes: int
    n_devices: int
    device_kind: str
    platform: str
    jax_version: str
    hardware: str  # of the estimate
    flops: int | None  # per device
    wire_bytes: int  # sent by one device
    compute_seconds: float | None  # estimated, at full efficiency
    communication_seconds: float
    measured_seconds: float  # median of the calls after the first
    n_calls: int

    @property
    def estimated_seconds(self) -> float:
        """The estimate without overlap."""
        return (self.compute_seconds or 0.0) + self.communication_seconds

    @property
    def efficiency(self) -> float:
        """The share of the peak figures at which the estimate is the measured time, at most 1."""
        return min(1.0, self.estimated_seconds / self.measured_seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": "calibration",
            **asdict(self),
            "mesh": dict(self.mesh),
            "estimated_seconds": self.estimated_seconds,
            "efficiency": self.efficiency,
        }


def read_calibration(file: str | Path) -> CalibrationPoint:
    """Return the point of a file that `shardlab launch --calibration` wrote."""
    try:
        data = json.loads(Path(file).read_text("utf-8"))
        if data.get("kind") != "calibration" or data.get("format") != FORMAT:
            raise ValueError(f"it is no calibration of format {FORMAT}")
        fields = {name: data[name] for name in CalibrationPoint.__dataclass_fields__}
        point = CalibrationPoint(**{**fields, "mesh": tuple(data["mesh"].items())})
        if not (point.measured_seconds > 0 and point.estimated_seconds > 0):
            raise ValueError("a time in it is not positive")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidCalibration(
            f"The calibration cannot be used: {type(error).__name__}: {error}.",
            where=str(file),
            fix="write one with `shardlab launch PROGRAM --hardware CHIP --calibration FILE`.",
        ) from None
    return point
