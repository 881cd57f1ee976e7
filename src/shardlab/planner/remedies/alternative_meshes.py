"""Alternative meshes for a request: other splits of the same devices, fewer, or more devices.

Only axes that the mesh already has change their size, and only to sizes that divide a dimension of
nearly all large tensors: others would shard nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from math import log2, prod

from shardlab.planner.model import Model
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.sharding.factors import count_factorizations, factorizations
from shardlab.sharding.mesh import MAX_DEVICES, Mesh

_RESIZED_ROLES = ("fsdp", "data", "expert", "tensor")  # in the order in which they grow
_MAX_RESIZED = 4  # axes; with more, only those above size 1 are resized
_ODD_FACTORS = (1, 3, 5, 7)  # sizes are these times a power of two, as slices and nodes are
_NEARLY_ALL = 0.99  # of the elements of the model
_MAX_SMALLER = 4  # sizes below the present one that are tried for each axis
_MAX_GROWTH = 1024  # times the present size
_MAX_SPLITS = 2000


@dataclass(frozen=True)
class AlternativeMeshes:
    """The meshes to try instead of one, nearest first."""

    model: Model
    mesh: Mesh

    def same_device_count(self) -> Iterator[Mesh]:
        """Yield other sizes for the same devices; a larger tensor axis counts as farther away."""
        names = self._resized_axes
        # Highly composite device counts have thousands of splits, each of which is a plan.
        if not names or count_factorizations(self._resized_devices, len(names)) > _MAX_SPLITS:
            return
        splits = [
            sizes
            for sizes in factorizations(self._resized_devices, len(names))
            if all(map(self._is_useful, names, sizes))
        ]
        splits.sort(key=lambda sizes: self._distance(dict(zip(names, sizes, strict=True))))
        yield from self._resized_meshes(splits)

    def fewer_devices(self) -> Iterator[Mesh]:
        """Yield meshes of fewer devices, the most devices first."""
        choices = [
            (*self._present_size(name), *self._smaller_sizes(name)) for name in self._resized_axes
        ]
        splits = [sizes for sizes in product(*choices) if prod(sizes) < self._resized_devices]
        yield from self._resized_meshes(sorted(splits, key=lambda sizes: -prod(sizes)))

    def more_devices(self) -> Iterator[Mesh]:
        """Yield meshes of more devices, the fewest devices first, with one axis that grows."""
        splits = []
        for grown in self._resized_axes:
            choices = [
                self._larger_sizes(name) if name == grown else self._present_or_nearest(name)
                for name in self._resized_axes
            ]
            splits += [sizes for sizes in product(*choices) if prod(sizes) > self._resized_devices]
        # `sorted` is stable: of equal device counts fsdp grows before tensor.
        yield from self._resized_meshes(sorted(dict.fromkeys(splits), key=prod))

    @cached_property
    def _resized_axes(self) -> tuple[str, ...]:
        roles, shape = mesh_axis_roles(self.mesh), self.mesh.shape
        names = tuple(name for role in _RESIZED_ROLES for name in roles.get(role, ()))
        if len(names) <= _MAX_RESIZED:
            return names
        return tuple(name for name in names if shape[name] > 1)  # MaxText: a dozen of size 1

    @property
    def _resized_devices(self) -> int:
        return prod(self.mesh.shape[name] for name in self._resized_axes)

    def _resized_meshes(self, splits: list[tuple[int, ...]]) -> Iterator[Mesh]:
        for sizes in splits:
            shape = {**self.mesh.shape, **dict(zip(self._resized_axes, sizes, strict=True))}
            if shape != self.mesh.shape and prod(shape.values()) <= MAX_DEVICES:
                yield Mesh(shape)

    def _distance(self, sizes: dict[str, int]) -> float:
        """Return how far a split is from the present one: the sum of doublings and halvings.

        Growth of a tensor axis counts twice, because its communication cannot be overlapped.
        """
        tensor_axes = mesh_axis_roles(self.mesh).get("tensor", ())
        distance = 0.0
        for name, size in sizes.items():
            doublings = log2(size / self.mesh.shape[name])
            distance += abs(doublings) + (max(doublings, 0) if name in tensor_axes else 0)
        return distance

    def _present_size(self, name: str) -> tuple[int, ...]:
        size = self.mesh.shape[name]
        return (size,) if self._is_useful(name, size) else ()

    def _present_or_nearest(self, name: str) -> tuple[int, ...]:
        """Return the present size, or those next to it if it is not useful."""
        nearest = (*islice(self._smaller_sizes(name), 1), *self._larger_sizes(name)[:1])
        return self._present_size(name) or nearest

    def _smaller_sizes(self, name: str) -> Iterator[int]:
        size = self.mesh.shape[name]
        sizes = [
            odd << power
            for odd in _ODD_FACTORS
            for power in range(size.bit_length())
            if odd << power < size
        ]
        useful = (
            smaller for smaller in sorted(sizes, reverse=True) if self._is_useful(name, smaller)
        )
        return islice(useful, _MAX_SMALLER)

    def _larger_sizes(self, name: str) -> tuple[int, ...]:
        size, limit = self.mesh.shape[name], self.mesh.shape[name] * _MAX_GROWTH
        sizes = [
            odd << power
            for odd in _ODD_FACTORS
            for power in range(limit.bit_length())
            if size < odd << power <= limit
        ]
        return tuple(larger for larger in sorted(sizes) if self._is_useful(name, larger))

    def _is_useful(self, name: str, size: int) -> bool:
        """Return whether an axis of that size shards nearly all of the model.

        An expert axis must divide the experts and a tensor axis the heads, if these are known.
        """
        arch, roles = self.model.architecture, mesh_axis_roles(self.mesh)
        if arch is not None and name in roles.get("tensor", ()) and arch.heads % size:
            return False
        if arch is not None and name in roles.get("expert", ()) and arch.experts % size:
            return False
        return self._divides_model(size)

    def _divides_model(self, size: int) -> bool:
        counts = self._elements_by_shape
        divisible = sum(
            n_elements
            for shape, n_elements in counts.items()
            if any(dim_size % size == 0 for dim_size in shape)
        )
        return divisible >= _NEARLY_ALL * sum(counts.values())

    @cached_property
    def _elements_by_shape(self) -> dict[tuple[int, ...], int]:
        counts: dict[tuple[int, ...], int] = {}
        for group in self.model.groups:
            n_elements = group.n_tensors * group.n_elements
            counts[group.shape] = counts.get(group.shape, 0) + n_elements
        return counts
