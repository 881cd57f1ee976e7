"""A program on a small mesh and with small arrays, so that it can be run for real.

The scaled-down program must be the same program: it is traced from the user's function, never
rewritten. So shapes are only changed where the function can be traced with the new ones. Which
sizes depend on each other (a width is heads times head size, a hidden layer four widths) is not
known; that is found by trying: first all sizes by one factor, then each size alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from shardlab._text.units import amount_text, bytes_text
from shardlab.analysis.run_arguments import count_argument_bytes
from shardlab.sharding.mesh import MeshSizes, mesh_text
from shardlab.sharding.spec import Spec
from shardlab.tracing.jaxpr_flops import count_jaxpr_flops
from shardlab.tracing.stage import StagedProgram, stage_program

Shape = tuple[int, ...]
LeafFunction = Callable[..., Any]

# What host devices run within a minute, with compilation for each of them.
_MAX_DEVICES = 16
_MAX_ARGUMENT_BYTES = 64_000_000
_MAX_FLOPS = 20e9
# Below this a dimension is left alone: layers, experts, kernel sizes, channels of a picture.
_SMALLEST_DIM = 8
_FACTORS = (64, 32, 16, 8, 4, 2)
_SEARCH_LIMIT_S = 60.0


class NotScaled(Exception):
    """The program cannot be made small enough to run; the text says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledProgram:
    """The shapes of the arguments and the mesh on which the program is run."""

    mesh: MeshSizes
    avals: tuple[Any, ...]  # ShapeDtypeStructs without sharding
    has_original_shapes: bool
    staged: StagedProgram  # on one device, with these shapes


def scale_program(
    f: LeafFunction, avals: Sequence[Any], sizes: MeshSizes, specs: Sequence[Spec]
) -> ScaledProgram:
    """Return the program as it can be run; raise `NotScaled` where that is impossible.

    `f` takes the leaves of the arguments, `avals` are their ShapeDtypeStructs.
    """
    mesh = scale_mesh(sizes)
    reasons: list[str] = []
    start = time.perf_counter()
    for new_shapes in _candidate_shapes(f, avals, mesh):
        if time.perf_counter() - start > _SEARCH_LIMIT_S:
            reasons.append("the search for smaller shapes took too long")
            break
        candidate = [
            jax.ShapeDtypeStruct(shape, aval.dtype)
            for shape, aval in zip(new_shapes, avals, strict=True)
        ]
        if not _divides(candidate, specs, dict(mesh)):
            reasons.append("the specs do not divide the smaller shapes")
            continue
        staged = trace_on_one_device(f, candidate, mesh)
        if staged is None:
            continue
        reason = _too_large(candidate, staged)
        if reason is None:
            return ScaledProgram(
                mesh=mesh,
                avals=tuple(candidate),
                has_original_shapes=all(
                    new == tuple(aval.shape) for new, aval in zip(new_shapes, avals, strict=True)
                ),
                staged=staged,
            )
        reasons.append(reason)
    raise NotScaled(
        reasons[-1]
        if reasons
        else f"its arguments take {bytes_text(count_argument_bytes(avals))}, and the program "
        "cannot be traced with smaller shapes"
    )


def scale_mesh(sizes: MeshSizes) -> MeshSizes:
    """Return the mesh with each axis reduced to 2 or 3 devices, or as it is where neither divides.

    >>> scale_mesh((("data", 16), ("model", 9), ("expert", 1)))
    (('data', 2), ('model', 3), ('expert', 1))
    >>> scale_mesh((("data", 16), ("stage", 5)))
    (('data', 2), ('stage', 5))
    """
    mesh = tuple((name, _scaled_size(size)) for name, size in sizes)
    if math.prod(size for _, size in mesh) > _MAX_DEVICES:
        raise NotScaled(
            f"its scaled-down mesh {mesh_text(mesh)} has more than {_MAX_DEVICES} devices"
        )
    return mesh


def _scaled_size(size: int) -> int:
    return next((n for n in (2, 3) if size % n == 0), size)


def _candidate_shapes(
    f: LeafFunction, avals: Sequence[Any], mesh: MeshSizes
) -> Iterator[list[Shape]]:
    original = [tuple(aval.shape) for aval in avals]
    # The original shapes are the better proof, where they are cheap.
    if count_argument_bytes(avals) <= _MAX_ARGUMENT_BYTES:
        yield original
    for factor in _FACTORS:
        shrunk = [tuple(_shrink(size, factor) for size in shape) for shape in original]
        if shrunk != original and _argument_bytes(shrunk, avals) <= _MAX_ARGUMENT_BYTES:
            yield shrunk
    yield _shrink_one_by_one(f, avals, mesh)


def _shrink(size: int, factor: int) -> int:
    """Return the size divided by the factor, or by the largest power of 2 that keeps it >= 8."""
    while factor > 1 and (size % factor or size // factor < _SMALLEST_DIM):
        factor //= 2
    return size // factor


def _argument_bytes(shapes: Sequence[Shape], avals: Sequence[Any]) -> int:
    pairs = zip(shapes, avals, strict=True)
    return sum(math.prod(shape) * aval.dtype.itemsize for shape, aval in pairs)


def _shrink_one_by_one(f: LeafFunction, avals: Sequence[Any], mesh: MeshSizes) -> list[Shape]:
    """Shrink every size that may shrink alone, the largest first: batches, vocabularies."""
    new_sizes: dict[int, int] = {}
    start = time.perf_counter()
    for size in sorted({n for aval in avals for n in aval.shape}, reverse=True):
        for factor in _FACTORS:
            shrunk = _shrink(size, factor)
            if shrunk == size or time.perf_counter() - start > _SEARCH_LIMIT_S / 2:
                break
            trial = {**new_sizes, size: shrunk}
            candidate = [
                jax.ShapeDtypeStruct(_rename(aval.shape, trial), aval.dtype) for aval in avals
            ]
            if trace_on_one_device(f, candidate, mesh) is not None:
                new_sizes = trial
                break
    return [_rename(aval.shape, new_sizes) for aval in avals]


def _rename(shape: Shape, new_sizes: Mapping[int, int]) -> Shape:
    return tuple(new_sizes.get(size, size) for size in shape)


def trace_on_one_device(
    f: LeafFunction, avals: Sequence[Any], mesh: MeshSizes
) -> StagedProgram | None:
    """Return the program on a mesh of one device with the same axes; None if JAX rejects it."""
    one_device = {name: 1 for name, _ in mesh}
    # Any exception of the user's function means that it does not take these shapes.
    with contextlib.suppress(Exception):
        return stage_program(jax.jit(f), avals, one_device)
    return None


def _divides(avals: Sequence[Any], specs: Sequence[Spec], sizes: Mapping[str, int]) -> bool:
    return all(
        size % math.prod(sizes[name] for name in names) == 0
        for aval, spec in zip(avals, specs, strict=True)
        for size, names in zip(aval.shape, spec.axes, strict=False)
    )


def _too_large(avals: Sequence[Any], staged: StagedProgram) -> str | None:
    n_bytes = count_argument_bytes(avals)
    if n_bytes > _MAX_ARGUMENT_BYTES:
        return (
            f"its arguments take {bytes_text(n_bytes)} with the smallest shapes with which the "
            "program can be traced"
        )
    flops = count_jaxpr_flops(staged.jaxpr).total
    if flops > _MAX_FLOPS:
        return f"it computes {amount_text(flops, 'FLOP')} with the smallest shapes that were tried"
    return None


def partition_spec(spec: Spec) -> PartitionSpec:
    """Return JAX's form of a spec."""
    return PartitionSpec(*spec.entries)
