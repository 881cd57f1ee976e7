"""The record of a repair: one operation of a program, computed in another way. Loads no JAX."""

from __future__ import annotations

import dataclasses
from typing import Literal

from shardlab.findings.source import SourceLocation

RepairKind = Literal[
    "divide",
    "multiply",
    "count_once",
    "divide_last",
    "offset",
    "slice_offset",
    "reverse",
    "sum_shards",
    "average_shards",
    "maximum_of_shards",
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repair:
    """How one operation of a program is changed, over which mesh axes, and where it is.

    `divide` and `multiply` scale the result of a sum by the number of devices. `count_once` scales
    the term of an addition that is the same on all devices, `divide_last` sums both operands of a
    division first, and `offset` adds the position of the shard to indices.

    `slice_offset` adds that position to the start of a slice, and `reverse` exchanges source and
    destination of the pairs of a ppermute. `sum_shards`, `average_shards` and `maximum_of_shards`
    complete a reduction of the elements of one shard with a collective.
    """

    kind: RepairKind
    primitive: str
    mesh_axes: tuple[str, ...]
    source: SourceLocation
    columns: tuple[int, int] = (0, 0)  # of the operation in its line
    is_summed: bool = False  # `divide_last`: the quotients are summed, not averaged
