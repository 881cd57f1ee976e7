"""Other meshes for the same question: other splits of its devices, fewer of them, more of them.

Only the sizes of axes change that are there, whose names say what they cut, and only to sizes that
divide an array axis of nearly all that is large: others would cut nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from math import log2, prod

from shardlab.planner.model import Model
from shardlab.planner.strategies.axis_roles import mesh_axis_roles
from shardlab.sharding.factors import n_products, products
from shardlab.sharding.mesh import MAX_DEVICES, Mesh

_MOVED = ("fsdp", "data", "expert", "tensor")  # roles, in the order in which they are to grow
_ODD = (1, 3, 5, 7)
_NEARLY_ALL = 0.99  # of the bytes
_NEAR = 4  # sizes below the present one that are tried of each axis
_MOST_TIMES = 1024
_MANY = 2000  # splits: an axis of size 1 stays so where there are more


@dataclass(frozen=True)
class OtherMeshes:
    """The meshes to try in place of one, the nearest first."""

    model: Model
    mesh: Mesh

    def splits(self) -> Iterator[Mesh]:
        """Yield other sizes for as many devices; a larger tensor axis counts as farther away."""
        names = self._names
        n = prod(self.mesh.shape[name] for name in names)
        if not names or n_products(n, len(names)) > _MANY:
            return
        found = [
            sizes for sizes in products(n, len(names)) if all(map(self._divides, names, sizes))
        ]
        found.sort(key=lambda sizes: self._distance(dict(zip(names, sizes, strict=True))))
        yield from self._meshes(found)

    def fewer(self) -> Iterator[Mesh]:
        """Yield meshes of fewer devices, as many as may be first."""
        choices = [(*self._good(name), *self._below(name)) for name in self._names]
        found = [sizes for sizes in product(*choices) if prod(sizes) < self._n_moved]
        yield from self._meshes(sorted(found, key=lambda sizes: -prod(sizes)))

    def more(self) -> Iterator[Mesh]:
        """Yield meshes of more devices, as few as may be first, with one axis that grows."""
        found = []
        for name in self._names:
            choices = [
                self._above(each) if each == name else self._kept(each) for each in self._names
            ]
            found += [sizes for sizes in product(*choices) if prod(sizes) > self._n_moved]
        # of equal ones the first: fsdp grows before tensor
        yield from self._meshes(sorted(dict.fromkeys(found), key=prod))

    @cached_property
    def _names(self) -> tuple[str, ...]:
        roles, shape = mesh_axis_roles(self.mesh), self.mesh.shape
        names = tuple(name for role in _MOVED for name in roles.get(role, ()))
        # MaxText's meshes have a dozen axes of size 1
        return names if len(names) <= 4 else tuple(name for name in names if shape[name] > 1)

    @property
    def _n_moved(self) -> int:
        return prod(self.mesh.shape[name] for name in self._names)

    def _meshes(self, found: list[tuple[int, ...]]) -> Iterator[Mesh]:
        for sizes in found:
            shape = {**self.mesh.shape, **dict(zip(self._names, sizes, strict=True))}
            if shape != self.mesh.shape and prod(shape.values()) <= MAX_DEVICES:
                yield Mesh(shape)

    def _distance(self, sizes: dict[str, int]) -> float:
        tensor = mesh_axis_roles(self.mesh).get("tensor", ())
        far = 0.0
        for name, size in sizes.items():
            step = log2(size / self.mesh.shape[name])
            far += abs(step) + (max(step, 0) if name in tensor else 0)
        return far

    def _good(self, name: str) -> tuple[int, ...]:
        size = self.mesh.shape[name]
        return (size,) if self._divides(name, size) else ()

    def _kept(self, name: str) -> tuple[int, ...]:
        """Return the size itself, or those next to it where it does not divide."""
        near = (*islice(self._below(name), 1), *self._above(name)[:1])
        return self._good(name) or near

    def _below(self, name: str) -> Iterator[int]:
        size = self.mesh.shape[name]
        found = [odd << k for odd in _ODD for k in range(size.bit_length()) if odd << k < size]
        dividing = (each for each in sorted(found, reverse=True) if self._divides(name, each))
        return islice(dividing, _NEAR)

    def _above(self, name: str) -> tuple[int, ...]:
        size, most = self.mesh.shape[name], self.mesh.shape[name] * _MOST_TIMES
        last = most.bit_length()
        found = [odd << k for odd in _ODD for k in range(last) if size < odd << k <= most]
        return tuple(each for each in sorted(found) if self._divides(name, each))

    def _divides(self, name: str, size: int) -> bool:
        """Tell whether nearly all bytes are in tensors with an array axis that it divides.

        An expert axis divides the experts, and a tensor axis the heads, where these are known.
        """
        arch, roles = self.model.architecture, mesh_axis_roles(self.mesh)
        if arch is not None and name in roles.get("tensor", ()) and arch.heads % size:
            return False
        if arch is not None and name in roles.get("expert", ()) and arch.experts % size:
            return False
        return self._is_common(size)

    def _is_common(self, size: int) -> bool:
        cut = sum(n for shape, n in self._shapes if any(axis % size == 0 for axis in shape))
        return cut >= _NEARLY_ALL * sum(n for _, n in self._shapes)

    @cached_property
    def _shapes(self) -> list[tuple[tuple[int, ...], int]]:
        found: dict[tuple[int, ...], int] = {}
        for each in self.model.groups:
            found[each.shape] = found.get(each.shape, 0) + each.n_tensors * each.n_elements
        return list(found.items())
