"""A program in two forms that must agree: a shard_map body, and the unsharded function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One program for one mesh. The inputs are NumPy arrays, which each variant transfers."""

    mesh: dict[str, int]
    body: Callable[..., Any]
    in_specs: Any
    out_specs: Any
    unsharded: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]

    @property
    def n_devices(self) -> int:
        return math.prod(self.mesh.values())


def identity(x: Any) -> Any:
    """Replace a collective on a single device."""
    return x
