"""The words of pictures: amounts, devices and slices as a person writes them.

>>> bytes_text(33_554_432), count_text(1, "slice"), count_text(4096, "device")
('32 MiB', '1 slice', '4,096 devices')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def devices_text(devices: Iterable[int], n_devices: int, *, short: bool = False) -> str:
    """Return who they are: all of a few, a range, or the first ones and how many.

    >>> devices_text([3], 1), devices_text([0, 4], 2), devices_text(range(8), 8)
    ('device 3', 'devices 0, 4', 'devices 0-7')
    >>> devices_text(range(0, 512, 2), 256), devices_text([0, 4], 2, short=True)
    ('devices 0, 2, … (256)', '0,4')
    """
    few = _few(devices)
    noun = "" if short else "device " if n_devices == 1 else "devices "
    comma = "," if short else ", "
    if n_devices > 2 and n_devices == len(few) == few[-1] - few[0] + 1:
        return f"{noun}{few[0]}-{few[-1]}"
    if n_devices <= 4:
        return noun + comma.join(map(str, few))
    if short:
        return f"{few[0]},…"
    return f"{noun}{few[0]}, {few[1]}, … ({n_devices:,})"


def _few(devices: Iterable[int]) -> list[int]:
    """Take devices while they follow one another, at least 4 and at most 64."""
    few: list[int] = []
    for device in islice(devices, 64):
        few.append(device)
        if len(few) >= 4 and few[-1] - few[-2] != 1:
            break
    return few


def slice_text(index: Sequence[slice], shape: Sequence[int]) -> str:
    """Return an index as one writes it in NumPy, `:` for a whole axis.

    >>> slice_text((slice(0, 8), slice(6, 9)), (8, 12))
    '[:, 6:9]'
    """
    parts = (range_text(s, size) for s, size in zip(index, shape, strict=True))
    return f"[{', '.join(parts)}]"


def range_text(one: slice, size: int) -> str:
    whole = (one.start, one.stop) == (0, size)
    return ":" if whole else f"{one.start}:{one.stop}"


def shape_text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
