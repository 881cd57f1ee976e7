"""Bytes that one device sends in one collective call, on a ring of its group.

>>> wire_bytes("psum", 1024, 4), wire_bytes("all_gather", 1024, 4), wire_bytes("ppermute", 1024, 4)
(1536, 3072, 1024)

The payload is the operand on one device. All reductions (psum, pmax, pmin) cost the same: a
reduce-scatter and an all-gather of the result. Fractions of a byte are rounded up.
"""

from __future__ import annotations

from collections.abc import Callable

# operation -> (payload bytes p, group size g) -> numerator and denominator of the bytes sent
_FORMULAS: dict[str, tuple[str, Callable[[int, int], tuple[int, int]]]] = {
    "psum": ("2 (g-1)/g p", lambda p, g: (2 * (g - 1) * p, g)),
    "pmax": ("2 (g-1)/g p", lambda p, g: (2 * (g - 1) * p, g)),
    "pmin": ("2 (g-1)/g p", lambda p, g: (2 * (g - 1) * p, g)),
    "all_gather": ("(g-1) p", lambda p, g: ((g - 1) * p, 1)),
    "psum_scatter": ("(g-1)/g p", lambda p, g: ((g - 1) * p, g)),
    "all_to_all": ("(g-1)/g p", lambda p, g: ((g - 1) * p, g)),
    # Its sizes are operands, known only at run time; the payload is the upper bound.
    "ragged_all_to_all": ("p", lambda p, g: (p, 1)),
    "ppermute": ("p", lambda p, g: (p, 1)),
    "pbroadcast": ("p", lambda p, g: (p, 1)),
}


def wire_bytes(op: str, payload_bytes: int, group_size: int) -> int:
    """Return the bytes that one device sends; 0 in a group of one."""
    if group_size <= 1:
        return 0
    numerator, denominator = _FORMULAS[op][1](payload_bytes, group_size)
    return -(-numerator // denominator)


def wire_formula(op: str) -> str:
    """Return the formula as text: p is the payload, g the group size."""
    return _FORMULAS[op][0]


REDUCTIONS = ("psum", "pmax", "pmin")
