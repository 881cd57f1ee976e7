"""Collectives of whose result only a slice is used.

Makes the clues `gather_then_slice` and `psum_then_slice`. Their facts: `axes` (mesh axes of the
collective), `dimension` (the array axis), `whole` and `used` (its size after the collective and
in the slice), `slice` (the Source of the slice), `by_place` (whether each device takes a slice by
its own place on the axes, or all the same), `n` (devices along the axes), `payload_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardlab import _jax
from shardlab.simulator.interpreter.rules.collectives import SUM_COLLECTIVES, collective_axes
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import Program
from shardlab.tracing.patterns.value_uses import Use, Uses

_GATHERS = frozenset({"all_gather", "all_gather_invariant", "all_gather_reduced"})


def slices(program: Program, uses: Uses) -> Iterator[ProgramPattern]:
    """Yield a clue for each collective whose result is cut down to what one device could have."""
    for site in program.sites:
        if site.phase != "forward" or site.eqn.params.get("axis_index_groups") is not None:
            continue
        if site.name in _GATHERS or site.name in SUM_COLLECTIVES:
            use = uses.only_use(site)
            cut = _cut(use) if use is not None and use.operand == 0 else None
            if use is not None and cut is not None:
                yield from _clue(program, site, use, cut)


Cut = tuple[int, int, int, Any]  # dimension, whole size, used size, start: an atom, or a number


def _clue(program: Program, site: Site, use: Use, cut: Cut) -> Iterator[ProgramPattern]:
    dimension, whole, used, start = cut
    axes = site.place.axes.drop_size_one(collective_axes(site.eqn.params))
    n = site.place.axes.size(axes)
    by_place = not isinstance(start, int) and _rests_on_place(use.site.block, start, axes)
    is_gather = site.name in _GATHERS
    if n < 2 or used * n > whole or (is_gather and not _is_gathered(site, dimension)):
        return
    if not (by_place or (is_gather and isinstance(start, int))):
        return
    if not is_gather and used * n != whole:
        return
    aval = site.eqn.invars[0].aval
    facts = {
        "axes": axes,
        "dimension": dimension,
        "whole": whole,
        "used": used,
        "slice": use.site.source,
        "by_place": by_place,
        "n": n,
        "payload_bytes": aval.size * aval.dtype.itemsize,
    }
    yield ProgramPattern(
        "gather_then_slice" if is_gather else "psum_then_slice", site.source, facts
    )


def _is_gathered(site: Site, dimension: int) -> bool:
    return bool(site.eqn.params["all_gather_dimension"] == dimension)


def _cut(use: Use) -> Cut | None:
    """Return which one array axis an equation cuts, and from where; None for any other equation."""
    eqn = use.site.eqn
    shape = eqn.invars[0].aval.shape
    if use.site.name == "dynamic_slice":
        sizes, starts = eqn.params["slice_sizes"], list(eqn.invars[1 : 1 + len(shape)])
    elif use.site.name == "slice" and eqn.params["strides"] is None:
        starts = list(eqn.params["start_indices"])
        sizes = [b - a for a, b in zip(starts, eqn.params["limit_indices"], strict=True)]
    elif use.site.name == "gather":
        numbers = eqn.params["dimension_numbers"]
        if len(numbers.start_index_map) != 1 or eqn.invars[1].aval.shape != (1,):
            return None
        sizes, starts = eqn.params["slice_sizes"], [0] * len(shape)
        starts[numbers.start_index_map[0]] = eqn.invars[1]
    else:
        return None
    cut = [n for n, size in enumerate(sizes) if size != shape[n]]
    if len(cut) != 1:
        return None
    (dimension,) = cut
    start = starts[dimension]
    if isinstance(start, _jax.Literal):
        start = int(start.val)
    return dimension, shape[dimension], sizes[dimension], start


def _rests_on_place(block: Block, atom: Any, axes: tuple[str, ...]) -> bool:
    """Say whether a start index is computed from the device's place on these axes alone."""
    found: set[str] = set()
    todo, seen = [(block, atom)], set()
    while todo:
        block, atom = todo.pop()
        if isinstance(atom, _jax.Literal) or (block, atom) in seen:
            continue
        seen.add((block, atom))
        if len(seen) > 200:
            return False
        site = block.definition(atom)
        if site is None:
            if block.varies(atom):
                return False  # an argument or a carry: not by place alone
            continue
        if site.name == "axis_index":
            found.update(collective_axes(site.eqn.params))
        todo += [(site.block, operand) for operand in site.eqn.invars]
    return bool(found) and found <= set(axes)
