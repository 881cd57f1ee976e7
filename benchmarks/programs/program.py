"""A program in two forms that must agree: one body per device, and the same thing unsharded."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Program:
    """What one benchmark runs; the inputs are NumPy, so that each contender places its own."""

    mesh: dict[str, int]
    body: Callable[..., Any]
    in_specs: Any
    out_specs: Any
    unsharded: Callable[..., Any]
    inputs: Callable[[], tuple[Any, ...]]

    @property
    def n_devices(self) -> int:
        return math.prod(self.mesh.values())

    @property
    def mesh_text(self) -> str:
        """Return the mesh as shardlab reads it, such as `data=16,model=16`."""
        return ",".join(f"{name}={size}" for name, size in self.mesh.items())


def same(x: Any) -> Any:
    """Stand in for a collective where there is only one device."""
    return x
