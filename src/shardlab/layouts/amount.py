"""Amounts of bytes as people write them.

>>> parse_bytes("1.5MB"), parse_bytes("2 KiB"), parse_bytes(96)
(1500000, 2048, 96)
>>> memory_text(96e9), memory_text(1500), memory_text(96)
('96.0 GB', '1.5 KB', '96 bytes')
"""

from __future__ import annotations

import re
from typing import Any

from shardlab.errors import BadType
from shardlab.errors.brief import brief
from shardlab.layouts.text import bad_text

_AMOUNT = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")
_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS |= {_letter + "b": 1000**_power, _letter + "ib": 1024**_power, _letter: 1000**_power}


def parse_bytes(amount: Any) -> int:
    """Return a whole number of bytes: KB, MB, GB are powers of 1000, KiB, MiB, GiB of 1024."""
    if isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0:
        return amount
    if not isinstance(amount, str):
        raise BadType(f"{brief(amount)} is not an amount of bytes.", fix='1500000, or "1.5MB".')
    found = _AMOUNT.fullmatch(amount)
    if found is None or found[2].lower() not in _UNITS:
        start = found.start(2) if found else 0
        raise bad_text(
            "An amount of bytes was expected here.",
            amount,
            start,
            max(len(amount.rstrip()), start + 1),
            kind="amount",
            fix="write a number and a unit, such as 1.5MB, 64KiB or 8GiB.",
        )
    return round(float(found[1]) * _UNITS[found[2].lower()])


def memory_text(n_bytes: float) -> str:
    """Return bytes by powers of 1000 with one digit, as chips are sold and papers count.

    Plans use it everywhere, so that 70 billion parameters of 2 bytes read as 140 GB, and columns
    line up. What a program sends and what one array takes is told in powers of 1024 elsewhere.

    >>> memory_text(141_107_412_992), memory_text(999_960), memory_text(1), memory_text(-2.5e6)
    ('141.1 GB', '1.0 MB', '1 byte', '-2.5 MB')
    """
    size = abs(n_bytes)
    for power, unit in ((18, "EB"), (15, "PB"), (12, "TB"), (9, "GB"), (6, "MB"), (3, "KB")):
        if size >= 10**power * 0.99995:
            return f"{n_bytes / 10**power:,.1f} {unit}"
    whole = round(n_bytes)
    return f"{whole} byte{'s' * (abs(whole) != 1)}"
