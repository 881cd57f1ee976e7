"""How a mesh divides a workload: the shard counts of batch, sequence, heads and layers.

>>> from shardlab.sharding.mesh import parse_mesh
>>> shards = workload_shards(parse_mesh("data=2,fsdp=4,tensor=8"))
>>> shards.batch.n_shards, shards.tensor.n_shards, shards.stage.n_shards, str(shards.batch)
(8, 8, 1, 'data=2 × fsdp=4')
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from shardlab.planner.strategies.axis_roles import batch_axes, mesh_axis_roles
from shardlab.sharding.mesh import Mesh, MeshSizes


@dataclass(frozen=True)
class AxisShards:
    """The mesh axes that shard one quantity, with their sizes."""

    axes: MeshSizes = ()

    @property
    def n_shards(self) -> int:
        return prod(size for _, size in self.axes)

    def per_device(self, size: int) -> int:
        """Return the share of the fullest device.

        >>> AxisShards((("data", 4),)).per_device(10)
        3
        """
        return -(-size // self.n_shards)

    @property
    def divisor_text(self) -> str:
        """The divisor in a formula: ` / fsdp=8`, ` / (data=2 × fsdp=8)`, or an empty string."""
        text = str(self)
        return f" / ({text})" if "×" in text else f" / {text}" if text else ""

    def __str__(self) -> str:
        return " × ".join(f"{name}={size}" for name, size in self.axes if size > 1)


@dataclass(frozen=True, kw_only=True)
class WorkloadShards:
    """What a mesh divides, by the roles of its axes; an axis without a role divides nothing."""

    batch: AxisShards
    sequence: AxisShards
    tensor: AxisShards
    stage: AxisShards


def workload_shards(mesh: Mesh) -> WorkloadShards:
    """Return the shards of a workload, by the names of the mesh axes."""
    roles = mesh_axis_roles(mesh)
    return WorkloadShards(
        batch=_axis_shards(mesh, batch_axes(mesh)),
        sequence=_axis_shards(mesh, roles.get("sequence", ())),
        tensor=_axis_shards(mesh, roles.get("tensor", ())),
        stage=_axis_shards(mesh, roles.get("stage", ())),
    )


def _axis_shards(mesh: Mesh, names: tuple[str, ...]) -> AxisShards:
    return AxisShards(tuple((name, mesh.shape[name]) for name in names))
