"""What every device holds of every output, as a frame carries it.

Shards are told in the order of their devices. One that equals an earlier one, place and numbers,
names it (`same_as`) and sends no numbers of its own: a replicated output travels once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from shardlab.judge.protocol.values import array_bytes

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Piece:
    """The part of an output that one device holds."""

    device: int
    ranges: Ranges
    values: npt.NDArray[Any]


def output(
    path: str, shape: Sequence[int], dtype: str, pieces: Iterable[Piece]
) -> tuple[dict[str, Any], list[bytes]]:
    """Return an output as JSON data, and the numbers of its pieces.

    >>> import numpy as np
    >>> two = [Piece(device, ((0, 1),), np.array([7], np.int8)) for device in (0, 1)]
    >>> output("", (1,), "int8", two)[0]["shards"][1]
    {'device': 1, 'ranges': [[0, 1]], 'same_as': 0}
    """
    told: list[dict[str, Any]] = []
    buffers: list[bytes] = []
    known: dict[tuple[Ranges, bytes], int] = {}
    for number, piece in enumerate(sorted(pieces, key=lambda piece: piece.device)):
        numbers = array_bytes(piece.values)
        first = known.setdefault((piece.ranges, numbers), number)
        entry = {"device": piece.device, "ranges": [list(pair) for pair in piece.ranges]}
        if first == number:
            buffers.append(numbers)
            told.append(entry)
        else:
            told.append({**entry, "same_as": first})
    return {"path": path, "shape": list(shape), "dtype": dtype, "shards": told}, buffers


def ranges_of(index: Sequence[slice], shape: Sequence[int]) -> Ranges:
    """Return where a shard begins and ends along each array axis.

    >>> ranges_of((slice(None), slice(2, 4)), (3, 8))
    ((0, 3), (2, 4))
    """
    pairs = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    return tuple((int(start), int(stop)) for start, stop in pairs)
