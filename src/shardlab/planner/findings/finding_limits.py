"""Limits: the size from which something is reported as a finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab._text.units import parse_bytes


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Below these a finding would be noise."""

    replicated_bytes: int = 64 * 2**20  # of one row of the plan, per device
    low_headroom: float = 0.05  # fraction of the chip's memory that is free beyond the headroom
    replicated_states: float = 0.1  # fraction of a device's bytes that ZeRO 1 would save
    imbalance: float = 0.01  # fraction of a device's bytes by which the last device has less


def parse_limits(limits: Any) -> Limits:
    """Return the limits; an amount alone is the limit for replicated bytes.

    >>> parse_limits("1GB").replicated_bytes, parse_limits(None) == Limits()
    (1000000000, True)
    """
    if limits is None or isinstance(limits, Limits):
        return limits or Limits()
    return Limits(replicated_bytes=parse_bytes(limits))
