"""Margins: how many times their estimate activations may take, as measured.

>>> margin_of("none"), margin_of("4"), margin_of("none", given=1.0)
(2.1, 1.9, 1.0)

The formulas count each tensor that the backward pass reads once; XLA keeps more. The figures are
the largest of `temp_size_in_bytes` over the estimate for a small Llama (docs/plan-memory.md,
"Activations and the KV cache"; tests/plans/test_compiled.py measures them again).
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from shardlab.errors import UnknownChoice
from shardlab.errors.brief import brief

# remat policy -> measured / estimate; a flash kernel makes selective the same as none
MARGINS = {"none": 2.1, "selective": 2.1, "dots": 1.3, "full": 1.9}


def margin_of(remat: str, given: float | None = None) -> float:
    """Return the margin of a remat policy; a number of arrays is computed again as full is."""
    return MARGINS.get(remat, MARGINS["full"]) if given is None else given


def parse_margin(margin: Any) -> float | None:
    """Return a margin that a person gave for all policies, or None."""
    if margin is None:
        return None
    is_number = isinstance(margin, (int, float)) and not isinstance(margin, bool)
    if not is_number or not isfinite(margin) or margin <= 0:
        raise UnknownChoice(
            f"The margin of activations is {brief(margin)}.",
            fix="a number such as 1.5, by which their estimate is multiplied; 1 trusts it.",
        )
    return float(margin)
