"""Which operations of a program could be wrong, and runs of the program with one of them repaired.

Candidates are operations that people get wrong: a sum that should be a mean or the other way round,
a term that every device adds before a sum, a quotient that is computed before the sums, indices
that start again on every device. They are found in the jaxpr of each mesh by their source line, so
that one repair can be tried on all meshes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, get_args

import numpy as np

from shardlab import _jax
from shardlab.analysis.compiled_simulation import compile_simulation
from shardlab.analysis.lineage import equation_location
from shardlab.simulator.interpreter.repairs import SwitchedRepair, apply_repairs
from shardlab.simulator.interpreter.rules.collectives import SUM_COLLECTIVES, collective_axes
from shardlab.simulator.repair import Repair, RepairKind

_ORDER: tuple[RepairKind, ...] = get_args(RepairKind)
# A psum of a local sum whose psum is missing also makes a mean right that should be a sum, so these
# are tried only if no change of an existing operation explains the result.
_SECOND_KINDS: frozenset[RepairKind] = frozenset(
    {"slice_offset", "reverse", "sum_shards", "average_shards", "maximum_of_shards"}
)
# Each runs at least once, and makes the compiled program larger.
_MAX_REPAIRS = 48
_SUMS = SUM_COLLECTIVES | {"reduce_scatter", "unreduced_reduce_scatter"}
_ADDITIONS = frozenset({"add", "add_any", "sub"})
# What a term may pass through between the addition and the sum.
_PASSES_TERMS = frozenset(
    {
        "convert_element_type",
        "reshape",
        "transpose",
        "squeeze",
        "broadcast_in_dim",
        "pvary",
        "pcast",
        "mul",
        "neg",
        "copy",
        *_ADDITIONS,
    }
)


def list_repairs(
    closed: Any, mesh_axes: Sequence[str], *, has_mean_of_means: bool
) -> tuple[list[Repair], list[Repair]]:
    """Return the repairs to try, the simplest first, each once; then those to try if none helps.

    Every softmax has a division; they are candidates only if a sum of quotients is in the program.
    """
    candidates = [
        repair
        for _, repair in _candidates(closed, tuple(mesh_axes))
        if has_mean_of_means or repair.kind != "divide_last"
    ]
    unique = sorted(dict.fromkeys(candidates), key=lambda repair: _ORDER.index(repair.kind))
    first = [repair for repair in unique if repair.kind not in _SECOND_KINDS]
    second = [repair for repair in unique if repair.kind in _SECOND_KINDS]
    return first[:_MAX_REPAIRS], second[:_MAX_REPAIRS]


def run_repaired(
    closed: Any,
    repairs: Sequence[Repair],
    mesh_axes: Sequence[str],
    indices: Sequence[int],
    arrays: list[Any],
) -> dict[Repair, list[Any] | None]:
    """Return some outputs of a program for each repair, or None if the repaired program fails.

    Repairs of one kind are compiled as one program.
    """
    results: dict[Repair, list[Any] | None] = {}
    for kinds in _COMPILED_TOGETHER:
        group = [repair for repair in repairs if repair.kind in kinds]
        try:
            results |= _run_group(closed, group, mesh_axes, indices, arrays)
        except Exception:
            # A changed operation may not fit the rest of the program; then it is no cause. Another
            # one of the group may fit.
            for repair in group:
                try:
                    results |= _run_group(closed, [repair], mesh_axes, indices, arrays)
                except Exception:
                    results[repair] = None
    return results


# With an offset indices differ by device, also while it is off: terms that are the same on every
# device would not be recognized as such. A sum of operands may not fit where the division is.
_COMPILED_TOGETHER: tuple[tuple[RepairKind, ...], ...] = (
    ("divide", "multiply", "count_once"),
    ("divide_last",),
    ("offset",),
    ("slice_offset",),
    ("reverse",),
    ("sum_shards", "average_shards", "maximum_of_shards"),
)


def _run_group(
    closed: Any,
    repairs: Sequence[Repair],
    mesh_axes: Sequence[str],
    indices: Sequence[int],
    arrays: list[Any],
) -> dict[Repair, list[Any] | None]:
    if not repairs:
        return {}
    numbers = {repair: number for number, repair in enumerate(repairs)}
    candidates = [pair for pair in _candidates(closed, tuple(mesh_axes)) if pair[1] in numbers]

    @contextlib.contextmanager
    def repaired(number: Any) -> Iterator[None]:
        by_equation: dict[int, list[SwitchedRepair]] = {}
        for eqn, repair in candidates:
            item = SwitchedRepair(repair, number == numbers[repair])
            by_equation.setdefault(id(eqn), []).append(item)
        with apply_repairs(by_equation):
            yield

    evaluate_program = compile_simulation(closed, indices, repaired)
    return {
        repair: evaluate_program([np.int32(number), *arrays]) for repair, number in numbers.items()
    }


def _candidates(closed: Any, mesh_axes: tuple[str, ...]) -> list[tuple[Any, Repair]]:
    """Return the equations of a program, each with a repair; a repair may have many equations."""
    single = list(_candidates_of_one_line(closed, mesh_axes))
    return [*single, *_reversed_rings(single)]


def _reversed_rings(single: Sequence[tuple[Any, Repair]]) -> Iterator[tuple[Any, Repair]]:
    """Yield the ppermutes over the same mesh axes as one repair: keys and values go one way."""
    rings: dict[tuple[str, ...], list[tuple[Any, Repair]]] = {}
    for eqn, repair in single:
        if repair.kind == "reverse":
            rings.setdefault(repair.mesh_axes, []).append((eqn, repair))
    for ring in rings.values():
        first = ring[0][1]
        if any(repair != first for _, repair in ring):
            # No columns: this repair is of all of them, not of the first.
            together = dataclasses.replace(first, columns=(0, 0))
            yield from ((eqn, together) for eqn, _ in ring)


def _candidates_of_one_line(
    closed: Any, mesh_axes: tuple[str, ...]
) -> Iterator[tuple[Any, Repair]]:
    for jaxpr in _shard_map_jaxprs(closed, is_inside=False):
        eqns_by_output = {out: eqn for eqn in jaxpr.eqns for out in eqn.outvars}
        for eqn in jaxpr.eqns:
            name, source = eqn.primitive.name, equation_location(eqn)
            if not source.line or _is_backward(eqn):
                continue
            for kind, axes, is_summed in _kinds_of(eqn, eqns_by_output, jaxpr, mesh_axes):
                yield (
                    eqn,
                    Repair(
                        kind=kind,
                        primitive=name,
                        mesh_axes=axes,
                        source=source,
                        # Layers in a Python loop, and leaves of a pytree, are the same operation.
                        columns=_jax.user_columns(eqn),
                        is_summed=is_summed,
                    ),
                )


def _is_backward(eqn: Any) -> bool:
    """Return whether an equation is of a backward pass, which follows from the forward pass."""
    return "transpose(" in _jax.name_stack(eqn)


def _kinds_of(
    eqn: Any, eqns_by_output: dict[Any, Any], jaxpr: Any, mesh_axes: tuple[str, ...]
) -> Iterator[tuple[RepairKind, tuple[str, ...], bool]]:
    name = eqn.primitive.name
    if name in _SUMS:
        for axes in _axis_choices(collective_axes(eqn.params)):
            yield "divide", axes, False
            yield "multiply", axes, False
    if name in _ADDITIONS:
        for axes in _sums_reached_by(eqn, eqns_by_output, jaxpr):
            yield "count_once", axes, False
    if name == "div" and not any(isinstance(atom, _jax.Literal) for atom in eqn.invars):
        for axis in mesh_axes:
            yield "divide_last", (axis,), False
            yield "divide_last", (axis,), True
    if name == "ppermute":
        yield "reverse", collective_axes(eqn.params), False
    for kind in _KINDS_OF_LOCAL_OPERATIONS.get(name, ()):
        for axis in mesh_axes:
            yield kind, (axis,), False


# Operations on one shard that may have to know its position, or the shards of other devices.
_KINDS_OF_LOCAL_OPERATIONS: dict[str, tuple[RepairKind, ...]] = {
    "iota": ("offset",),
    "dynamic_slice": ("slice_offset",),
    "dynamic_update_slice": ("slice_offset",),
    "reduce_sum": ("sum_shards", "average_shards"),
    "reduce_max": ("maximum_of_shards",),
}


def _axis_choices(axes: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [axes] if len(axes) == 1 else [axes, *((axis,) for axis in axes)]


def _sums_reached_by(
    addition: Any, eqns_by_output: dict[Any, Any], jaxpr: Any
) -> list[tuple[str, ...]]:
    """Return the mesh axes of the sums to which an addition contributes its terms."""
    axes_of_sums = []
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in _SUMS and _contributes(addition, eqn, eqns_by_output):
            axes_of_sums.append(collective_axes(eqn.params))
    return list(dict.fromkeys(axes_of_sums))


def _contributes(addition: Any, psum: Any, eqns_by_output: dict[Any, Any]) -> bool:
    pending = deque(psum.invars)
    visited: set[int] = set()
    while pending:
        atom = pending.popleft()
        eqn = None if isinstance(atom, _jax.Literal) else eqns_by_output.get(atom)
        if eqn is None or id(eqn) in visited or eqn.primitive.name not in _PASSES_TERMS:
            continue
        if eqn is addition:
            return True
        visited.add(id(eqn))
        pending.extend(islice(eqn.invars, 2))
    return False


def _shard_map_jaxprs(jaxpr: Any, *, is_inside: bool) -> Iterator[Any]:
    """Yield each jaxpr at any depth inside a shard_map, without those of a backward pass."""
    inner, _ = _jax.open_jaxpr(jaxpr)
    if is_inside:
        yield inner
    for eqn in inner.eqns:
        # The name stack of a body does not repeat that of its equation.
        if _is_backward(eqn):
            continue
        for body in _jax.inner_jaxprs(eqn.params):
            yield from _shard_map_jaxprs(
                body, is_inside=is_inside or eqn.primitive.name == "shard_map"
            )
