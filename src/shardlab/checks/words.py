"""How findings put mesh axes, calls and bytes.

>>> named(("data", "model")), amount(1536), amount(3 * 2**26)
("'data', 'model'", '1.5 KiB', '192 MiB')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardlab.records.collective import CollectiveCall

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")


def named(axes: Sequence[str]) -> str:
    """Return mesh axes in quotes: `'data'`, or `'data', 'model'`."""
    return ", ".join(f"'{axis}'" for axis in axes)


def as_argument(axes: Sequence[str]) -> str:
    """Return mesh axes as a person writes them in a call: `'data'`, or `('data', 'model')`."""
    return named(axes) if len(axes) == 1 else f"({named(axes)})"


def called(call: CollectiveCall) -> str:
    """Return a call in words: `psum over 'data'`."""
    return f"{call.op} over {named(call.mesh_axes)}"


def count(n: int, noun: str) -> str:
    """Return a number of things in words: `1 more output`, `8 more outputs`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def amount(n_bytes: int) -> str:
    """Return bytes in the largest unit that leaves at least one."""
    unit = min((max(n_bytes, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    if unit == 0:
        return f"{n_bytes} byte{'s' * (n_bytes != 1)}"
    return f"{n_bytes / 1024**unit:.3g} {_UNITS[unit]}"


def mesh_text(sizes: Iterable[tuple[str, int]]) -> str:
    """Return a mesh as text: `data=2, model=4`."""
    return ", ".join(f"{name}={size}" for name, size in sizes)
