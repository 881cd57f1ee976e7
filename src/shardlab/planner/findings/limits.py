"""Limits: from which size on something is worth a finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab._text.units import parse_bytes


@dataclass(frozen=True)
class Limits:
    """Below these a finding would be noise."""

    replicated_bytes: int = 64 * 2**20  # of one line of the plan, on each device
    tight_share: float = 0.05  # of the chip's memory, beyond the headroom
    copied_share: float = 0.1  # of what a device holds: states that need not be there


def parse_limits(limits: Any) -> Limits:
    """Return the limits; an amount alone is that from which replicated bytes are told.

    >>> parse_limits("1GB").replicated_bytes, parse_limits(None) == Limits()
    (1000000000, True)
    """
    if limits is None or isinstance(limits, Limits):
        return limits or Limits()
    return Limits(parse_bytes(limits))
