"""Sets of device numbers as text, such as "0-7,16".

>>> device_set([16, 0, 1, 2]), parse_device_set("0-2,16")
('0-2,16', (0, 1, 2, 16))
"""

from __future__ import annotations

from collections.abc import Iterable


def device_set(devices: Iterable[int]) -> str:
    """Return sorted ranges of device numbers."""
    parts: list[str] = []
    numbers = sorted({int(device) for device in devices})
    start = 0
    for index, number in enumerate(numbers):
        is_last = index + 1 == len(numbers)
        if is_last or numbers[index + 1] != number + 1:
            first = numbers[start]
            parts.append(f"{first}" if first == number else f"{first}-{number}")
            start = index + 1
    return ",".join(parts)


def parse_device_set(text: str) -> tuple[int, ...]:
    """Return the device numbers of a set."""
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
