"""The words of pictures: amounts, devices and slices as a person writes them.

>>> bytes_text(33_554_432), count_text(1, "slice"), count_text(4096, "device")
('32 MiB', '1 slice', '4,096 devices')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardlab.layouts.shards import Layout

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def bytes_text(n_bytes: int) -> str:
    """Return an amount in the largest unit that keeps it at 1 or more.

    >>> bytes_text(96), bytes_text(1536), bytes_text(1)
    ('96 bytes', '1.5 KiB', '1 byte')
    """
    if n_bytes == 1:
        return "1 byte"
    power = min(max(n_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    unit = 1024**power
    tenths = (n_bytes * 20 + unit) // (2 * unit)  # rounded, in whole numbers however large
    whole, tenth = divmod(tenths, 10)
    return f"{whole:,}{f'.{tenth}' if tenth else ''} {_UNITS[power]}"


def seconds_text(seconds: float) -> str:
    """Return a time in the unit that keeps it at 1 or more, with three digits.

    >>> seconds_text(0.0014913), seconds_text(48e-6), seconds_text(2.5), seconds_text(0)
    ('1.49 ms', '48 µs', '2.5 s', '0 s')
    """
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if seconds >= unit * 0.9995:
            return f"{_three_digits(seconds / unit)} {name}"
    return "0 s" if seconds == 0 else f"{_three_digits(seconds / 1e-9)} ns"


def amount_text(value: float, unit: str) -> str:
    """Return a figure with the prefix that keeps it at 1 or more, by powers of 1000.

    >>> amount_text(4.59e14, "FLOP/s"), amount_text(9e10, "B/s"), amount_text(12, "FLOP")
    ('459 TFLOP/s', '90 GB/s', '12 FLOP')
    """
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power * 0.9995:
            return f"{_three_digits(value / 10**power)} {prefix}{unit}"
    return f"{_three_digits(value)} {unit}"


def share_text(part: float, whole: float) -> str:
    """Return a share in percent; what is there but less than one half is not called nothing.

    >>> share_text(1, 3), share_text(1, 1000), share_text(0, 3), share_text(999, 1000)
    ('33 %', '<1 %', '0 %', '>99 %')
    """
    if not whole or not part:
        return "0 %"
    percent = 100 * part / whole
    if percent < 1:
        return "<1 %"
    return ">99 %" if 99.5 <= percent < 100 else f"{percent:.0f} %"


def _three_digits(value: float) -> str:
    places = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:,.{places}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def count_text(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


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


def device_text(layout: Layout, device: int) -> str:
    """Return what one device holds, and who else holds it.

    >>> from shardlab.layouts.shards import layout
    >>> print(device_text(layout((8, 6), "model", "data=2,model=2"), 3))
    device 3 (data=1, model=1) holds [4:8, :] of float32[8, 6]: shape [4, 6], 96 bytes
    the same slice is on devices 1, 3
    """
    mesh = layout.mesh
    part = layout.part(device)
    steps = zip(mesh.axis_names, mesh.coordinate(device), strict=True)
    place = ", ".join(f"{name}={at}" for name, at in steps)
    held = slice_text(layout.index_of_part(part), layout.shape)
    array = f"{layout.dtype.name}{shape_text(layout.shape)}"
    size = f"shape {shape_text(layout.shard_shape)}, {bytes_text(layout.bytes_per_device)}"
    owners = devices_text(layout.holders(part), layout.n_replicas)
    return f"device {device} ({place}) holds {held} of {array}: {size}\n" + (
        f"the same slice is on {owners}" if layout.n_replicas > 1 else "no other device holds it"
    )
