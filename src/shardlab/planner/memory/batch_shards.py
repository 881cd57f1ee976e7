"""Shares: into how many parts a mesh cuts the batch, the sequence, the heads and the layers.

>>> from shardlab.sharding.mesh import parse_mesh
>>> shares = shares_of(parse_mesh("data=2,fsdp=4,tensor=8"))
>>> shares.batch.parts, shares.tensor.parts, shares.stage.parts, str(shares.batch)
(8, 8, 1, 'data=2 × fsdp=4')
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.sharding.mesh import Mesh


@dataclass(frozen=True)
class Share:
    """The mesh axes that cut one thing, with their sizes."""

    axes: tuple[tuple[str, int], ...] = ()

    @property
    def parts(self) -> int:
        return prod(size for _, size in self.axes)

    def of(self, whole: int) -> int:
        """Return what the fullest device has of `whole`.

        >>> Share((("data", 4),)).of(10)
        3
        """
        return -(-whole // self.parts)

    @property
    def over(self) -> str:
        """What a formula says: ` / fsdp=8`, or ` / (data=2 × fsdp=8)`, or nothing."""
        text = str(self)
        return f" / ({text})" if "×" in text else f" / {text}" if text else ""

    def __str__(self) -> str:
        return " × ".join(f"{name}={size}" for name, size in self.axes if size > 1)


@dataclass(frozen=True)
class Shares:
    """What a mesh cuts by the roles of its axes; an axis without a role cuts nothing."""

    batch: Share
    sequence: Share
    tensor: Share
    stage: Share


def shares_of(mesh: Mesh) -> Shares:
    """Return the shares that the names of the mesh axes stand for."""
    roles = mesh_axis_roles(mesh)
    names = (
        batch_axes(mesh),
        *(roles.get(role, ()) for role in ("sequence", "tensor", "stage")),
    )
    return Shares(*(Share(tuple((name, mesh.shape[name]) for name in each)) for each in names))
