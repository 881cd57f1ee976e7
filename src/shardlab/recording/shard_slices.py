"""A spec as text, and the part of a global array that it gives to each device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shardlab.recording.value_summary import Slices
from shardlab.sharding.mesh import MeshSizes
from shardlab.simulator.interpreter.shard_boundary import spec_entries


def spec_text(spec: Any) -> str:
    """Return a PartitionSpec as the person writes it, such as `P('data', None)`."""
    entries = [
        "None" if not names else repr(names[0]) if len(names) == 1 else repr(tuple(names))
        for names in spec_entries(spec)
    ]
    if getattr(spec, "unreduced", None):
        entries.append(f"unreduced={set(spec.unreduced)!r}")
    return f"P({', '.join(entries)})"


def shard_slices(spec: Any, shape: Sequence[int], mesh: MeshSizes) -> Slices:
    """Return the part of the global array that each device holds."""
    entries = [*spec_entries(spec), *[()] * len(shape)][: len(shape)]
    sizes = dict(mesh)
    names = [name for name, _ in mesh]
    grid = np.indices([size for _, size in mesh]).reshape(len(mesh), -1)
    starts = []
    for size, entry in zip(shape, entries, strict=True):
        index = np.zeros(grid.shape[1], int)
        n_shards = 1
        for name in entry:
            if name in sizes:
                index = index * sizes[name] + grid[names.index(name)]
                n_shards *= sizes[name]
        length = size // n_shards
        starts.append((index * length, length))
    return {
        device: tuple((int(start[device]), int(start[device]) + length) for start, length in starts)
        for device in range(grid.shape[1])
    }
