"""An array with what its author said of it, out of whatever it was wrapped in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlab.layouts.spec import Spec

Key = tuple[str, ...]
Children = list[tuple[Key, Any]]


@dataclass(frozen=True)
class Named:
    """A leaf: names of its array axes, its own spec, the mesh this is for."""

    value: Any
    axes: tuple[str | None, ...] | None = None
    spec: Spec | None = None
    is_trained: bool = True
    mesh: str = ""
    is_state: bool = False  # of an optimizer
    flax: str = ""  # whose names these are: "nnx", where it is told
