"""A cut that a strategy would have made and did not, since the sizes forbid it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Declined:
    """What a strategy left whole: the mesh axes it had in mind, and what did not divide.

    >>> str(Declined("tensor", ("tensor",), 16, 0, 8, "kv_heads"))
    "8 kv heads do not divide over 'tensor' of size 16"
    """

    part: str  # of the strategy: "fsdp", "tensor", "expert", "zero"
    mesh_axes: tuple[str, ...]
    n_parts: int
    array_axis: int
    size: int  # what does not divide: the array axis, or the heads along it
    meaning: str  # of the array axis: "kv_heads", "mlp"; "" where it is not known

    def __str__(self) -> str:
        what = f"{self.size:,} {self.meaning.replace('_', ' ')}" if self.is_heads else (
            f"array axis {self.array_axis} of size {self.size:,}"
        )  # fmt: skip
        verb = "do" if self.is_heads else "does"
        axes = " × ".join(map(repr, self.mesh_axes))
        return f"{what} {verb} not divide over {axes} of size {self.n_parts:,}"

    @property
    def is_heads(self) -> bool:
        return self.meaning in ("heads", "kv_heads")

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**vars(self), "mesh_axes": list(self.mesh_axes)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Declined:
        """Return what `to_json` wrote."""
        return cls(**{**data, "mesh_axes": tuple(data["mesh_axes"])})
