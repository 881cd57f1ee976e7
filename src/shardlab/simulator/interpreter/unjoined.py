"""Outputs of a shard_map whose slices have not been joined yet.

The gradient of a shard_map is a second one, which takes what the first left over. JAX hands such a
residual on as one array over all devices: a weight that every device shares would be copied once
for each of them. A residual that is kept apart stays the one copy that it is.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.stacked_array import Axes, Spread


@dataclasses.dataclass(frozen=True)
class Kept:
    """The shards of an output, and how they are to be joined when someone needs the whole."""

    shards: Spread
    spec: Any
    inner: Axes
    newly: frozenset[str]

    def force(self) -> Spread:
        return boundary.join(self.shards, self.spec, self.inner)

    def fits(self, spec: Any, inner: Axes, newly: frozenset[str]) -> bool:
        """Say whether cutting the whole by `spec` would give these very shards."""
        return (
            _trimmed(self.spec) == _trimmed(spec)
            and not (self.spec.unreduced or spec.unreduced)
            and dict(self.inner.sizes) == dict(inner.sizes)
            and self.newly == newly
        )

    def with_array(self, array: Any) -> Kept:
        return dataclasses.replace(self, shards=Spread(array, self.shards.at))


def _trimmed(spec: Any) -> list[tuple[str, ...]]:
    entries = boundary.entries(spec)
    while entries and not entries[-1]:
        entries.pop()
    return entries
