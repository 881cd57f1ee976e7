"""Outputs of a shard_map whose slices have not been joined yet.

The gradient of a shard_map is a second one, which takes what the first left over. JAX hands such a
residual on as one array over all devices: a weight that every device shares would be copied once
for each of them. A residual that is kept apart stays the one copy that it is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnjoinedOutput:
    """The shards of an output, and how they are to be joined when someone needs the whole."""

    shards: StackedArray
    spec: Any
    inner: MeshAxes
    newly: frozenset[str]

    def force(self) -> StackedArray:
        return boundary.gather_output(self.shards, self.spec, self.inner)

    def fits(self, spec: Any, inner: MeshAxes, newly: frozenset[str]) -> bool:
        """Say whether cutting the whole by `spec` would give these very shards."""
        return (
            _trimmed(self.spec) == _trimmed(spec)
            and not (self.spec.unreduced or spec.unreduced)
            and dict(self.inner.sizes) == dict(inner.sizes)
            and self.newly == newly
        )

    def with_array(self, array: Any) -> UnjoinedOutput:
        return dataclasses.replace(self, shards=StackedArray(array, self.shards.device_axes))


def _trimmed(spec: Any) -> list[tuple[str, ...]]:
    entries = boundary.spec_entries(spec)
    while entries and not entries[-1]:
        entries.pop()
    return entries
