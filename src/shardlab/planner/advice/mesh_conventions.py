"""How usual a mesh is: which of several people would try first, if their times are the same.

Estimates for one model, chip and program on different meshes scatter by 6 % around the published
times (docs/planner-accuracy.md), so of two meshes 90 % differ by up to 14 % from what is estimated.
A mesh to which recipes have an objection is therefore ranked before one without only if it is
faster by more than that; and each further mesh axis must gain something too.

>>> from shardlab.hardware.chips import parse_hardware
>>> conventions = MeshConventions(hardware=parse_hardware("tpu-v5e"), n_devices=1024)
>>> conventions.objections((("data", 4), ("fsdp", 256)))  # four slices of 256 chips
()
>>> conventions.objections((("fsdp", 1024),))
('fsdp gathers weights between slices',)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from shardlab.hardware.chips import Hardware
from shardlab.sharding.mesh import MeshSizes

# Two estimates that each err by 6 % (one standard deviation): 1.645 x sqrt(2) x 6 %.
COMPARISON_ERROR = 0.14
_AXIS_COST = 0.02  # of the time: what one more mesh axis must gain
_INNER_AXES = ("fsdp", "expert", "context", "tensor")  # on consecutive devices, inside of data


@dataclass(frozen=True, kw_only=True)
class MeshConventions:
    """What recipes for a number of devices of a chip do."""

    hardware: Hardware
    n_devices: int

    def penalty(self, mesh: MeshSizes) -> float:
        """Return the factor by which the time of a mesh is multiplied to rank it."""
        n_axes = sum(size > 1 for _, size in mesh)
        n_objections = len(self.objections(mesh))
        return (1 + COMPARISON_ERROR) ** n_objections * (1 + _AXIS_COST) ** max(n_axes - 1, 0)

    def avoids_accumulation(self, mesh: MeshSizes) -> bool:
        """Return whether programs for such a mesh compute the batch at once if they can.

        On TPUs they recompute more instead: of 94 published runs one accumulates gradients.
        """
        return self._is_torus and dict(mesh).get("stage", 1) == 1

    def objections(self, mesh: MeshSizes) -> tuple[str, ...]:
        """Return why people would not try a mesh first."""
        return tuple(self._list_objections(dict(mesh)))

    def _list_objections(self, sizes: dict[str, int]) -> Iterator[str]:
        data, fsdp, tensor = (sizes.get(name, 1) for name in ("data", "fsdp", "tensor"))
        n_inside = prod(sizes.get(name, 1) for name in _INNER_AXES)
        groups = "slices" if self._is_torus else "nodes"
        if tensor > self._n_connected:
            yield f"tensor spans {groups}"
        elif self._is_torus and tensor > 1 and not self._is_ring(tensor):
            yield "tensor is no ring of the torus"
        # Nodes have fast networks, and FSDP over all of them is common; DCN is slower.
        if self._is_torus and fsdp > 1 and n_inside > self._n_connected:
            yield "fsdp gathers weights between slices"
        if data > 1 and fsdp > 1 and n_inside != self._n_connected:
            yield f"data and fsdp do not meet at the edge of {groups}"

    def _is_ring(self, n_tensor: int) -> bool:
        chip = self.hardware
        if n_tensor == chip.devices_per_chip:  # inside of a chip
            return True
        return chip.makes_ring(n_tensor // chip.devices_per_chip, self._n_connected)

    @property
    def _is_torus(self) -> bool:
        return self.hardware.network == "torus"

    @property
    def _n_connected(self) -> int:
        """The devices of one slice, or of one node."""
        chip = self.hardware
        if not self._is_torus:
            return chip.domain
        n_pod = self.n_devices if chip.pod is None else chip.pod * chip.devices_per_chip
        return min(n_pod, self.n_devices)
