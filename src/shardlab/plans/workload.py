"""The workload: what a step computes on, beside the model itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """Sequences in a step over all devices, tokens in each, and what is kept for the backward pass.

    Without an optimizer it is inference: the batch is served at once, and its tokens are cached.
    """

    batch: int
    sequence: int
    remat: str = "full"  # "none", "selective", "full"; see activations.py
