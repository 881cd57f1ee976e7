"""Collectives of whose result only a slice is used.

Finds the patterns `all_gather_then_slice` and `psum_then_slice`. Facts: `axes` (mesh axes of the
collective), `dimension`, `full_size` and `used` (its size after the collective and in the slice),
`slice` (the location of the slice), `is_by_device` (whether each device takes a slice by its own
index along the axes, or all take the same), `n` (devices along the axes), `payload_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shardlab import _jax
from shardlab.simulator.interpreter.rules.collectives import SUM_COLLECTIVES, collective_axes
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import WalkedProgram
from shardlab.tracing.patterns.value_uses import Reader, ReaderIndex

_ALL_GATHERS = frozenset({"all_gather", "all_gather_invariant", "all_gather_reduced"})
# A start index that takes more steps to compute is not followed any further.
_MAX_STEPS = 200


def find_sliced_results(program: WalkedProgram, readers: ReaderIndex) -> Iterator[ProgramPattern]:
    """Yield a pattern for each collective whose result is sliced to one device's share."""
    for site in program.sites:
        if site.phase != "forward" or site.eqn.params.get("axis_index_groups") is not None:
            continue
        if site.name in _ALL_GATHERS or site.name in SUM_COLLECTIVES:
            # With a second reader the full result is needed.
            reader = readers.find_only_reader(site)
            used_slice = _find_slice(reader) if reader is not None and reader.operand == 0 else None
            if reader is not None and used_slice is not None:
                yield from _slice_pattern(site, reader, used_slice)


class _Slice(NamedTuple):
    """A slice of one dimension; `start` is an atom of the jaxpr, or a number."""

    dimension: int
    full_size: int
    used: int
    start: Any


def _slice_pattern(site: Site, reader: Reader, used_slice: _Slice) -> Iterator[ProgramPattern]:
    axes = site.context.axes.drop_size_one(collective_axes(site.eqn.params))
    n_devices = site.context.axes.size(axes)
    has_fixed_start = isinstance(used_slice.start, int)
    is_by_device = not has_fixed_start and _is_device_index(
        reader.site.block, used_slice.start, axes
    )
    # A slice larger than one device's share needs the collective.
    if n_devices < 2 or used_slice.used * n_devices > used_slice.full_size:
        return
    if site.name in _ALL_GATHERS:
        is_gathered = site.eqn.params["all_gather_dimension"] == used_slice.dimension
        if not is_gathered or not (is_by_device or has_fixed_start):
            return
        kind = "all_gather_then_slice"
    else:
        # Only a psum of which each device takes exactly its shard can be a psum_scatter.
        if not is_by_device or used_slice.used * n_devices != used_slice.full_size:
            return
        kind = "psum_then_slice"
    aval = site.eqn.invars[0].aval
    facts = {
        "axes": axes,
        "dimension": used_slice.dimension,
        "full_size": used_slice.full_size,
        "used": used_slice.used,
        "slice": reader.site.source,
        "is_by_device": is_by_device,
        "n": n_devices,
        "payload_bytes": aval.size * aval.dtype.itemsize,
    }
    yield ProgramPattern(kind, site.source, facts)


def _find_slice(reader: Reader) -> _Slice | None:
    """Return the slice that an equation takes of one dimension; None for any other equation."""
    eqn = reader.site.eqn
    shape = eqn.invars[0].aval.shape
    if reader.site.name == "dynamic_slice":
        sizes, starts = eqn.params["slice_sizes"], list(eqn.invars[1 : 1 + len(shape)])
    elif reader.site.name == "slice" and eqn.params["strides"] is None:
        starts = list(eqn.params["start_indices"])
        limits = eqn.params["limit_indices"]
        sizes = [limit - start for start, limit in zip(starts, limits, strict=True)]
    elif reader.site.name == "gather":
        # `x[i]` with a traced i: a gather with one index into one dimension.
        numbers = eqn.params["dimension_numbers"]
        if len(numbers.start_index_map) != 1 or eqn.invars[1].aval.shape != (1,):
            return None
        sizes, starts = eqn.params["slice_sizes"], [0] * len(shape)
        starts[numbers.start_index_map[0]] = eqn.invars[1]
    else:
        return None
    dims = [dim for dim, size in enumerate(sizes) if size != shape[dim]]
    if len(dims) != 1:
        return None
    (dimension,) = dims
    start = starts[dimension]
    # A literal start is the same slice on every device.
    if isinstance(start, _jax.Literal):
        start = int(start.val)
    return _Slice(dimension, shape[dimension], sizes[dimension], start)


def _is_device_index(block: Block, atom: Any, axes: tuple[str, ...]) -> bool:
    """Return whether a start index is computed from the device's index along these axes alone."""
    index_axes: set[str] = set()
    pending, visited = [(block, atom)], set()
    while pending:
        block, atom = pending.pop()
        if isinstance(atom, _jax.Literal) or (block, atom) in visited:
            continue
        visited.add((block, atom))
        if len(visited) > _MAX_STEPS:
            return False
        site = block.find_definition(atom)
        if site is None:
            if block.varying_axes(atom):
                return False  # an argument or a carry, which may hold anything
            continue
        if site.name == "axis_index":
            index_axes.update(collective_axes(site.eqn.params))
        pending += [(site.block, operand) for operand in site.eqn.invars]
    return bool(index_axes) and index_axes <= set(axes)
