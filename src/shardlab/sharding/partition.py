"""How a spec partitions an array on a mesh: shard counts and shard shapes.

>>> shard_counts(Spec("data", None, ("model", "data2")), Mesh(data=2, model=3, data2=5))
(2, 1, 15)
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from shardlab._text.nearest import unknown_name_text
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


@lru_cache(maxsize=4096)  # a plan has thousands of tensors, but few different specs
def shard_counts(spec: Spec, mesh: Mesh) -> tuple[int, ...]:
    """Return the number of shards for each entry of `spec`; raises if the spec is invalid."""
    used: set[str] = set()
    for name in spec.mesh_axes:
        if name not in mesh.shape:
            raise _unknown_axis_error(name, spec, mesh)
        if name in used:
            raise _duplicate_axis_error(name, spec, mesh)
        used.add(name)
    _check_reduction_axes("unreduced", spec.unreduced, used, spec, mesh)
    _check_reduction_axes("reduced", spec.reduced, used, spec, mesh)
    return tuple(prod(mesh.shape[name] for name in names) for names in spec.axes)


def shard_shape(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> tuple[int, ...]:
    """Return the shape of one device's shard.

    >>> shard_shape((8, 6), Spec("data"), Mesh(data=2, model=3))
    (4, 6)

    Raises `IndivisibleAxis` rather than pad: JAX rejects uneven shards too. Raises `SpecTooLong`
    even for trailing Nones, as `jax.device_put` does and `NamedSharding.shard_shape` does not.
    """
    counts = shard_counts(spec, mesh)
    if len(counts) > len(shape):
        raise _spec_too_long_error(shape, spec, mesh)
    sizes = []
    for dim, (size, n_shards) in enumerate(zip(shape, counts, strict=False)):
        quotient, remainder = divmod(size, n_shards)
        if remainder:
            raise _indivisible_error(dim, shape, spec, mesh, n_shards)
        sizes.append(quotient)
    return (*sizes, *shape[len(counts) :])


def nearest_divisible_sizes(size: int, n_shards: int) -> tuple[int, int]:
    """Return the next sizes below and above `size` that are divisible by `n_shards`.

    >>> nearest_divisible_sizes(10, 4)
    (8, 12)
    """
    below = size // n_shards * n_shards
    return below, below + n_shards


def _where(spec: Spec, mesh: Mesh, shape: tuple[int, ...] | None = None) -> str:
    array = "" if shape is None else f"shape {shape}, "
    return f"{array}spec {spec}, mesh {mesh}"


def _unknown_axis_error(name: str, spec: Spec, mesh: Mesh) -> UnknownMeshAxis:
    return UnknownMeshAxis(
        unknown_name_text("mesh axis", name, mesh.axis_names),
        where=_where(spec, mesh),
        fix="use an axis of the mesh, or None to replicate the dimension.",
    )


def _duplicate_axis_error(name: str, spec: Spec, mesh: Mesh) -> DuplicateSpecAxis:
    dims = [dim for dim, names in enumerate(spec.axes) for axis in names if axis == name]
    if dims[0] == dims[1]:
        use = f"twice for dimension {dims[0]}"
    else:
        use = f"for dimensions {dims[0]} and {dims[1]}"
    unused = [axis for axis in mesh.axis_names if axis not in spec.mesh_axes]
    alternative = f", or shard over {' or '.join(map(repr, unused))}" if unused else ""
    return DuplicateSpecAxis(
        f"Mesh axis {name!r} is used {use}; a mesh axis can shard only one dimension, once.",
        where=_where(spec, mesh),
        fix=f"use {name!r} once and write None for the other entry{alternative}.",
    )


def _spec_too_long_error(shape: tuple[int, ...], spec: Spec, mesh: Mesh) -> SpecTooLong:
    n_dims = {0: "no dimensions", 1: "1 dimension"}.get(len(shape), f"{len(shape)} dimensions")
    shorter = Spec(*spec.entries[: len(shape)])
    n_entries = "1 entry" if len(spec) == 1 else f"{len(spec)} entries"
    return SpecTooLong(
        f"The spec has {n_entries} and the array has {n_dims}.",
        where=_where(spec, mesh, shape),
        fix=f"at most one entry for each dimension, such as {shorter}.",
    )


def _indivisible_error(
    dim: int, shape: tuple[int, ...], spec: Spec, mesh: Mesh, n_shards: int
) -> IndivisibleAxis:
    size, names = shape[dim], spec.axes[dim]
    if len(names) == 1:
        axes = f"mesh axis {names[0]!r}"
    else:
        axes = "mesh axes " + " × ".join(f"{name!r}={mesh.shape[name]}" for name in names)
    below, above = nearest_divisible_sizes(size, n_shards)
    nearest = f"{below} or {above}" if below else f"{above}"
    alternative = _divisible_dimension(shape, spec, n_shards)
    instead = "" if alternative is None else f", shard dimension {alternative} instead"
    return IndivisibleAxis(
        f"Dimension {dim} has size {size}, which is not divisible by {n_shards} ({axes}).",
        where=_where(spec, mesh, shape),
        fix=f"change the size of dimension {dim} to {nearest}{instead}, or replicate it (None).",
    )


def _divisible_dimension(shape: tuple[int, ...], spec: Spec, n_shards: int) -> int | None:
    """Return an unsharded dimension whose size is divisible by `n_shards`, if there is one."""
    for dim, size in enumerate(shape):
        is_unsharded = dim >= len(spec) or not spec.axes[dim]
        if is_unsharded and size and size % n_shards == 0:
            return dim
    return None


def _check_reduction_axes(
    field: str, names: frozenset[str], used: set[str], spec: Spec, mesh: Mesh
) -> None:
    """Apply JAX's rules for `unreduced` and `reduced` mesh axes."""
    # JAX accepts an axis that exists, is in no entry of the spec, and has type Explicit.
    for name in sorted(names):
        error: LabError | None = None
        if name not in mesh.shape:
            error = _unknown_axis_error(name, spec, mesh)
        elif name in used:
            error = _reduction_axis_error(name, field, "also shards the array", spec, mesh)
        elif mesh.axis_types[mesh.axis_names.index(name)] != "Explicit":
            error = _reduction_axis_error(name, field, "is not of type Explicit", spec, mesh)
        if error is not None:
            raise error


def _reduction_axis_error(
    name: str, field: str, reason: str, spec: Spec, mesh: Mesh
) -> UnreducedNotAllowed:
    return UnreducedNotAllowed(
        f"Mesh axis {name!r} is marked {field} and {reason}.",
        where=_where(spec, mesh),
        fix=f"{field} mesh axes that are Explicit and in no entry of the spec.",
    )
