"""The cuts: into how many parts a spec cuts each array axis on a mesh.

>>> shard_counts(Spec("data", None, ("model", "data2")), Mesh(data=2, model=3, data2=5))
(2, 1, 15)
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from shardlab._text.nearest import nearest_name
from shardlab.errors import (
    DuplicateSpecAxis,
    IndivisibleAxis,
    LabError,
    SpecTooLong,
    UnknownMeshAxis,
    UnreducedNotAllowed,
)
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec


@lru_cache(maxsize=4096)
def shard_counts(spec: Spec, mesh: Mesh) -> tuple[int, ...]:
    """Return the number of parts for each entry of `spec`, once the names are known to be good."""
    used: set[str] = set()
    for name in spec.mesh_axes:
        if name not in mesh.shape:
            raise _unknown(name, spec, mesh)
        if name in used:
            raise _used_twice(name, spec, mesh)
        used.add(name)
    for word in ("unreduced", "reduced"):
        _check_special_axes(word, getattr(spec, word), used, spec, mesh)
    return tuple(prod(mesh.shape[name] for name in names) for names in spec.axes)


def shard_shape(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> tuple[int, ...]:
    """Return the shape of the piece that one device holds.

    >>> shard_shape((8, 6), Spec("data"), Mesh(data=2, model=3))
    (4, 6)

    Raises `IndivisibleAxis` rather than pad: JAX refuses uneven shards too. Raises `SpecTooLong`
    even for trailing Nones, as `jax.device_put` does and `NamedSharding.shard_shape` does not.
    """
    cuts = shard_counts(spec, mesh)
    if len(cuts) > len(shape):
        raise _too_long(shape, spec, mesh)
    piece = []
    for at, (size, n_parts) in enumerate(zip(shape, cuts, strict=False)):
        quotient, left = divmod(size, n_parts)
        if left:
            raise _indivisible(at, shape, spec, mesh, n_parts)
        piece.append(quotient)
    return (*piece, *shape[len(cuts) :])


def nearest_divisible_sizes(size: int, n_parts: int) -> tuple[int, int]:
    """Return the sizes next below and next above `size` that split into `n_parts`.

    >>> nearest_divisible_sizes(10, 4)
    (8, 12)
    """
    below = size // n_parts * n_parts
    return below, below + n_parts


def _where(spec: Spec, mesh: Mesh, shape: tuple[int, ...] | None = None) -> str:
    array = "" if shape is None else f"shape {shape}, "
    return f"{array}spec {spec}, mesh {mesh}"


def _unknown(name: str, spec: Spec, mesh: Mesh) -> UnknownMeshAxis:
    near = nearest_name(name, mesh.axis_names)
    known = ", ".join(map(repr, mesh.axis_names)) or "none"
    fix = f"{near!r}, the nearest name" if near else f"one of the mesh's axes: {known}"
    return UnknownMeshAxis(
        f"The mesh has no axis named {name!r}; it has {known}.",
        where=_where(spec, mesh),
        fix=f"{fix}.",
    )


def _used_twice(name: str, spec: Spec, mesh: Mesh) -> DuplicateSpecAxis:
    places = [at for at, names in enumerate(spec.axes) for each in names if each == name]
    if places[0] == places[1]:
        said = f"twice on array axis {places[0]}"
    else:
        said = f"on array axes {places[0]} and {places[1]}"
    unused = [each for each in mesh.axis_names if each not in spec.mesh_axes]
    other = f", or cut with {' or '.join(map(repr, unused))}" if unused else ""
    return DuplicateSpecAxis(
        f"Mesh axis {name!r} is used {said}, and each device has one place along it.",
        where=_where(spec, mesh),
        fix=f"keep {name!r} once and write None in the other place{other}.",
    )


def _too_long(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> SpecTooLong:
    n_axes = {0: "no axes", 1: "one axis"}.get(len(shape), f"{len(shape)} axes")
    shorter = Spec(*spec.entries[: len(shape)])
    n_entries = "1 entry" if len(spec) == 1 else f"{len(spec)} entries"
    return SpecTooLong(
        f"The spec has {n_entries} and the array has {n_axes}.",
        where=_where(spec, mesh, shape),
        fix=f"at most one entry for each array axis, such as {shorter}.",
    )


def _indivisible(
    at: int, shape: tuple[int, ...], spec: Spec, mesh: Mesh, n_parts: int
) -> IndivisibleAxis:
    size, names = shape[at], spec.axes[at]
    sizes = " × ".join(f"{name!r} of size {mesh.shape[name]}" for name in names)
    below, above = nearest_divisible_sizes(size, n_parts)
    nearest = f"{below} or {above}" if below else f"{above}"
    return IndivisibleAxis(
        f"Array axis {at} has size {size}, which {n_parts} shards cannot split evenly "
        f"(mesh {'axis' if len(names) == 1 else 'axes'} {sizes}).",
        where=_where(spec, mesh, shape),
        fix=f"size {nearest} on array axis {at}{_other_ways(at, shape, spec, mesh)}.",
    )


def _other_ways(at: int, shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> str:
    """Name a whole array axis that the same mesh axes would split, if there is one."""
    n_parts = prod(mesh.shape[name] for name in spec.axes[at])
    for other, size in enumerate(shape):
        whole = other >= len(spec) or not spec.axes[other]
        if whole and size and size % n_parts == 0:
            return f", cut array axis {other} instead, or leave it whole (None)"
    return ", or leave it whole (None)"


def _check_special_axes(
    word: str, names: frozenset[str], used: set[str], spec: Spec, mesh: Mesh
) -> None:
    """Apply JAX's rules for `unreduced` and `reduced`: known, not cutting, of type Explicit."""
    for name in sorted(names):
        error: LabError | None = None
        if name not in mesh.shape:
            error = _unknown(name, spec, mesh)
        elif name in used:
            error = _not_special(name, word, "also cuts the array", spec, mesh)
        elif mesh.axis_types[mesh.axis_names.index(name)] != "Explicit":
            error = _not_special(name, word, "is not of type Explicit", spec, mesh)
        if error is not None:
            raise error


def _not_special(name: str, word: str, why: str, spec: Spec, mesh: Mesh) -> UnreducedNotAllowed:
    return UnreducedNotAllowed(
        f"Mesh axis {name!r} is marked {word} and {why}.",
        where=_where(spec, mesh),
        fix=f"{word} mesh axes that are Explicit and stand in no entry.",
    )
