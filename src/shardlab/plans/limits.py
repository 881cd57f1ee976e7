"""Limits: from where on something is worth a word."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Below these a finding would be noise."""

    replicated_bytes: int = 64 * 2**20  # of one line of the plan, on each device
    tight_share: float = 0.05  # of the chip's memory, beyond the headroom
    copied_share: float = 0.1  # of what a device holds: states that need not be there
