"""The shardings that an array can have on a mesh.

>>> for axes in spec_choices((8, 6), (("data", 4), ("model", 2))):
...     print(spec_text(axes))
P()
P('data', None)
P('model', None)
P(None, 'model')
P(('data', 'model'), None)
P('data', 'model')
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod

from shardlab.sharding.spec import Spec

DimAxes = tuple[tuple[str, ...], ...]  # the mesh axes of each dimension
MeshSizes = tuple[tuple[str, int], ...]


def spec_choices(
    shape: Sequence[int], mesh: MeshSizes, dims: Collection[int] | None = None
) -> tuple[DimAxes, ...]:
    """Return every sharding that divides `shape`, simple ones first; only along `dims` if given."""
    names = [name for name, size in mesh if size > 1]
    allowed = range(len(shape)) if dims is None else sorted(dims)
    choices = {
        axes
        for picked in product([None, *allowed], repeat=len(names))
        if divides(axes := _axes_of(picked, names, len(shape)), shape, dict(mesh))
    }
    order = {name: index for index, name in enumerate(names)}

    def complexity(axes: DimAxes) -> tuple[object, ...]:
        used = [name for dim in axes for name in dim]
        return (
            len(used),
            [order[name] for name in used] if len(used) > 1 else [],
            [index for index, dim in enumerate(axes) if dim],
            [order[name] for name in used],
        )

    return tuple(sorted(choices, key=complexity))


def divides(axes: DimAxes, shape: Sequence[int], sizes: Mapping[str, int]) -> bool:
    """Return whether the shards of every dimension have the same size."""
    return all(
        n % prod(sizes[name] for name in names) == 0 for n, names in zip(shape, axes, strict=True)
    )


def replicated(shape: Sequence[int]) -> DimAxes:
    return ((),) * len(shape)


def n_shards(axes: DimAxes, sizes: Mapping[str, int]) -> int:
    return prod(sizes[name] for names in axes for name in names)


def spec_of(axes: DimAxes) -> Spec:
    """Return the sharding as a spec; a replicated array has the empty one."""
    return Spec(*axes) if any(axes) else Spec()


def spec_text(axes: DimAxes) -> str:
    return str(spec_of(axes))


def _axes_of(picked: Sequence[int | None], names: Sequence[str], rank: int) -> DimAxes:
    return tuple(
        tuple(name for name, dim in zip(names, picked, strict=True) if dim == index)
        for index in range(rank)
    )


def mesh_factorizations(n_devices: int, largest_model: int = 16) -> Iterator[MeshSizes]:
    """Yield the meshes of two axes to search for a number of devices, data parallel first.

    >>> list(mesh_factorizations(8))[:3]
    [(('data', 8), ('model', 1)), (('data', 4), ('model', 2)), (('data', 2), ('model', 4))]
    """
    for size in range(1, min(n_devices, largest_model) + 1):
        if n_devices % size == 0:
            yield (("data", n_devices // size), ("model", size))
