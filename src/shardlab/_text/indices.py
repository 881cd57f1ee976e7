"""Device ids, index ranges and shapes as text.

>>> devices_text([0, 1, 2, 3], 4), slice_text((slice(0, 8), slice(6, 9)), (8, 12))
('devices 0-3', '[:, 6:9]')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice


def devices_text(devices: Iterable[int], n_devices: int, *, short: bool = False) -> str:
    """Return device ids: all of them up to four, else a range, else the first two and the count.

    >>> devices_text([3], 1), devices_text([0, 4], 2), devices_text(range(8), 8)
    ('device 3', 'devices 0, 4', 'devices 0-7')
    >>> devices_text(range(0, 512, 2), 256), devices_text([0, 4], 2, short=True)
    ('devices 0, 2, … (256)', '0,4')
    """
    ids = _take_consecutive_ids(devices)
    noun = "" if short else "device " if n_devices == 1 else "devices "
    comma = "," if short else ", "
    if n_devices > 2 and n_devices == len(ids) == ids[-1] - ids[0] + 1:
        return f"{noun}{ids[0]}-{ids[-1]}"
    if n_devices <= 4:
        return noun + comma.join(map(str, ids))
    if short:
        return f"{ids[0]},…"
    return f"{noun}{ids[0]}, {ids[1]}, … ({n_devices:,})"


def _take_consecutive_ids(devices: Iterable[int]) -> list[int]:
    """Return the leading consecutive ids, at least 4 and at most 64 of them."""
    # `devices` can be a generator over millions of ids: read only what the text needs.
    ids: list[int] = []
    for device in islice(devices, 64):
        ids.append(device)
        if len(ids) >= 4 and ids[-1] - ids[-2] != 1:
            break
    return ids


def slice_text(index: Sequence[slice], shape: Sequence[int]) -> str:
    """Return an index in NumPy notation, `:` for a full dimension.

    >>> slice_text((slice(0, 8), slice(6, 9)), (8, 12))
    '[:, 6:9]'
    """
    ranges = (range_text(range_, size) for range_, size in zip(index, shape, strict=True))
    return f"[{', '.join(ranges)}]"


def range_text(range_: slice, size: int) -> str:
    """Return one slice of a dimension, `:` if it covers all of it."""
    is_full = (range_.start, range_.stop) == (0, size)
    return ":" if is_full else f"{range_.start}:{range_.stop}"


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as `[8, 6]`."""
    return f"[{', '.join(map(str, shape))}]"
