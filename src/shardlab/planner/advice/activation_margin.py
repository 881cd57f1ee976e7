"""How many times their estimate activations may take, as measured."""

from __future__ import annotations

from math import isfinite
from typing import Any

from shardlab.errors import UnknownOption, short_repr

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
        raise UnknownOption(
            f"The margin of activations is {short_repr(margin)}.",
            fix="a number such as 1.5, by which their estimate is multiplied; 1 trusts it.",
        )
    return float(margin)
