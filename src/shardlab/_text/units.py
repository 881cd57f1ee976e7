"""Amounts as text and back: bytes, seconds, rates, shares, counts.

>>> parse_bytes("1.5MB"), parse_bytes("2 KiB"), parse_bytes(96)
(1500000, 2048, 96)
>>> bytes_text(96e9), bytes_text(1500), bytes_text(96)
('96.0 GB', '1.5 kB', '96 bytes')
"""

from __future__ import annotations

import re
from typing import Any

from shardlab._text.scanner import syntax_error
from shardlab.errors import InvalidType, short_repr

_AMOUNT = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*")
_UNITS = {"": 1, "b": 1, "byte": 1, "bytes": 1}
for _power, _letter in enumerate("kmgtp", start=1):
    _UNITS |= {_letter + "b": 1000**_power, _letter + "ib": 1024**_power, _letter: 1000**_power}


def parse_bytes(amount: Any) -> int:
    """Return a number of bytes: kB, MB, GB are powers of 1000, KiB, MiB, GiB powers of 1024."""
    if isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0:  # bool is an int
        return amount
    if not isinstance(amount, str):
        raise InvalidType(
            f"{short_repr(amount)} is not an amount of bytes.", fix='1500000, or "1.5MB".'
        )
    match = _AMOUNT.fullmatch(amount)
    if match is None or match[2].lower() not in _UNITS:
        start = match.start(2) if match else 0
        raise syntax_error(
            "An amount of bytes was expected here.",
            amount,
            start,
            max(len(amount.rstrip()), start + 1),
            kind="amount",
            fix="write a number and a unit, such as 1.5MB, 64KiB or 8GiB.",
        )
    return round(float(match[1]) * _UNITS[match[2].lower()])


def bytes_text(n_bytes: float) -> str:
    """Return bytes in decimal units (powers of 1000) with one digit.

    This is the only byte formatter. Decimal units match data sheets, and dividing an amount by a
    bandwidth in GB/s gives seconds. `parse_bytes` also reads the binary units KiB, MiB, GiB.

    >>> bytes_text(141_107_412_992), bytes_text(999_960), bytes_text(1), bytes_text(-2.5e6)
    ('141.1 GB', '1.0 MB', '1 byte', '-2.5 MB')
    """
    size = abs(n_bytes)
    for power, unit in ((18, "EB"), (15, "PB"), (12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        # The limit is where one digit rounds up to the next unit: 999,960 is 1.0 MB, not 1000.0 kB.
        if size >= 10**power * 0.99995:
            return f"{n_bytes / 10**power:,.1f} {unit}"
    n_whole_bytes = round(n_bytes)
    return f"{n_whole_bytes} byte{'s' * (abs(n_whole_bytes) != 1)}"


def seconds_text(seconds: float) -> str:
    """Return a time with three digits, in the largest unit in which it is at least 1.

    >>> seconds_text(0.0014913), seconds_text(48e-6), seconds_text(2.5), seconds_text(0)
    ('1.49 ms', '48 µs', '2.5 s', '0 s')
    """
    # 0.9995: three digits round up to the next unit, 999.6 µs is 1 ms.
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= unit * 0.9995:
            return f"{_three_digits(seconds / unit)} {name}"
    return "0 s" if seconds == 0 else f"{_three_digits(seconds / 1e-9)} ns"


def amount_text(value: float, unit: str) -> str:
    """Return a figure with three digits and the largest decimal prefix in which it is at least 1.

    >>> amount_text(4.59e14, "FLOP/s"), amount_text(9e10, "B/s"), amount_text(12, "FLOP")
    ('459 TFLOP/s', '90 GB/s', '12 FLOP')
    """
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power * 0.9995:
            return f"{_three_digits(value / 10**power)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def share_text(part: float, total: float) -> str:
    """Return a share in percent; a small nonzero share is `<1 %`, never `0 %`.

    >>> share_text(1, 3), share_text(1, 1000), share_text(0, 3), share_text(999, 1000)
    ('33 %', '<1 %', '0 %', '>99 %')
    """
    if not total or not part:
        return "0 %"
    percent = 100 * part / total
    if percent < 1:
        return "<1 %"
    return ">99 %" if 99.5 <= percent < 100 else f"{percent:.0f} %"


def _three_digits(value: float) -> str:
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count_text(n: int, noun: str) -> str:
    """Return a count with its noun: `1 shard`, `4,096 devices`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
