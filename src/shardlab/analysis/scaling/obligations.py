"""The obligations of a scaled-down check that need no run: is it the same program on every size?"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

from shardlab.analysis.mesh_trace import trace_on_mesh
from shardlab.analysis.run_arguments import error_summary, fill_arguments
from shardlab.analysis.scaling.aligned_programs import (
    AlignedJaxpr,
    Misaligned,
    align_programs,
)
from shardlab.analysis.scaling.range_walk import RangeProblem, RangeWalk
from shardlab.analysis.scaling.scaled_arguments import (
    argument_shapes,
    find_sharded_dims,
    list_scaled_meshes,
    scale_arguments,
)
from shardlab.analysis.scaling.size_rules import SizeRules
from shardlab.analysis.scaling.value_range import UNKNOWN, ValueRange, array_range
from shardlab.findings.scaled_proof import Obligation
from shardlab.sharding.mesh import Mesh

SAME_PROGRAM, PERMUTATIONS = "same program", "permutations"
DEVICE_INDEX, NUMBERS, VALUES = "device index", "number ranges", "values"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledTrial:
    """Small meshes with their arguments, and what holds on them and on the full mesh."""

    meshes: tuple[Mesh, ...] = ()
    arguments: tuple[tuple[Any, ...], ...] = ()
    jaxprs: tuple[Any, ...] = ()  # of the small meshes
    obligations: tuple[Obligation, ...] = ()

    @property
    def n_failed(self) -> int:
        return sum(not item.holds for item in self.obligations)


def trace_full_mesh(f: Callable[..., Any], args: Sequence[Any], mesh: Mesh) -> Any:
    """Return the jaxpr of the program on a mesh; arguments that are arrays count as shapes."""
    leaves, tree, _ = argument_shapes(args)
    return trace_on_mesh(f, leaves, tree, mesh)[0]


def try_scaled_meshes(
    f: Callable[..., Any], args: Sequence[Any], full: Mesh, closed: Any
) -> ScaledTrial:
    """Return the first set of small meshes on which all obligations hold, or the best one.

    `closed` is the trace on the full mesh.
    """
    dims = find_sharded_dims(closed)
    best: ScaledTrial | None = None
    for meshes in list_scaled_meshes(full):
        trial = _try_set(f, args, full, closed, meshes, dims)
        if best is None or trial.n_failed < best.n_failed:
            best = trial
        if not trial.n_failed:
            break
    return best or ScaledTrial(
        obligations=(_fails(SAME_PROGRAM, "No mesh axis is large enough to be scaled down."),)
    )


def _try_set(
    f: Callable[..., Any],
    args: Sequence[Any],
    full: Mesh,
    closed: Any,
    meshes: Sequence[Mesh],
    dims: Any,
) -> ScaledTrial:
    arguments, jaxprs = [], []
    for mesh in meshes:
        scaled = scale_arguments(args, dims, full, mesh)
        if scaled is None:
            what = (
                "A dimension of an argument is sharded over several mesh axes in turn and is "
                "not divisible over all of them together, so no smaller array has the same shards."
            )
            return ScaledTrial(obligations=(_fails(SAME_PROGRAM, what),))
        try:
            jaxprs.append(trace_full_mesh(f, scaled, mesh))
        except Exception as error:
            what = f"The program does not trace on {mesh}: {error_summary(error)}"
            return ScaledTrial(obligations=(_fails(SAME_PROGRAM, what),))
        arguments.append(scaled)
    obligations = _compare_traces([closed, *jaxprs], full, meshes, arguments)
    return ScaledTrial(
        meshes=tuple(meshes),
        arguments=tuple(arguments),
        jaxprs=tuple(jaxprs),
        obligations=tuple(obligations),
    )


def _compare_traces(
    jaxprs: Sequence[Any], full: Mesh, meshes: Sequence[Mesh], arguments: Sequence[Any]
) -> list[Obligation]:
    rules = SizeRules([dict(mesh.shape) for mesh in (full, *meshes)])
    try:
        program = align_programs(jaxprs, rules)
    except Misaligned as error:
        difference = error.difference
        name = PERMUTATIONS if difference.is_permutation else SAME_PROGRAM
        return [Obligation(name=name, holds=False, what=difference.what, where=difference.source)]
    counts = _count_equations(program)
    return [
        Obligation(
            name=SAME_PROGRAM,
            holds=True,
            what=f"its {counts.n_equations:,} operations are the same on all of these meshes; "
            "sizes, numbers and loop lengths follow rules of the axis sizes",
        ),
        Obligation(
            name=PERMUTATIONS,
            holds=True,
            what=_permutations_text(counts.n_permutations),
        ),
        *_range_obligations(program, rules, arguments),
    ]


def _range_obligations(
    program: AlignedJaxpr, rules: SizeRules, arguments: Sequence[Any]
) -> list[Obligation]:
    walk = RangeWalk(rules)
    walk.run(program, _argument_ranges(arguments))
    by_kind: dict[str, list[RangeProblem]] = {"device_index": [], "numbers": []}
    for problem in walk.problems.values():
        by_kind[problem.kind].append(problem)
    if walk.n_device_uses:
        index_text = (
            f"{walk.n_device_uses} uses of a device's position; each has the same cases on "
            "every size"
        )
    else:
        index_text = "no value depends on the position of a device as a number"
    texts = {
        "device_index": (DEVICE_INDEX, index_text),
        "numbers": (
            NUMBERS,
            "no integer leaves its type on the full mesh, and no sum over devices is in a float "
            "type too narrow for it",
        ),
    }
    obligations = []
    for kind, problems in by_kind.items():
        name, text = texts[kind]
        obligations += [
            Obligation(name=name, holds=False, what=problem.what, where=problem.source)
            for problem in problems
        ] or [Obligation(name=name, holds=True, what=text)]
    return obligations


def _argument_ranges(arguments: Sequence[Any]) -> list[ValueRange]:
    """Return the bounds of the integers that the scaled runs get as arguments."""
    columns: list[list[Any]] = []
    for args in arguments:
        shapes, _, indices = argument_shapes(args)
        leaves = jax.tree.leaves(tuple(args), is_leaf=lambda leaf: isinstance(leaf, str))
        # The values of floats do not matter, and take long to draw.
        columns.append(
            [
                fill_arguments([leaves[i]], first_seed=i)[0] if _is_integer(shapes[i]) else None
                for i in indices
            ]
        )
    # The full mesh gets arguments like these: as large, and with more elements.
    return [
        UNKNOWN if arrays[0] is None else _widest(array_range([arrays[0], *arrays]))
        for arrays in zip(*columns, strict=True)
    ]


def _is_integer(shape: Any) -> bool:
    return getattr(shape.dtype, "kind", "V") in "biu"


def _widest(bounds: ValueRange) -> ValueRange:
    pairs = bounds.pairs
    if pairs is None:
        return UNKNOWN
    widest = (min(low for low, _ in pairs), max(high for _, high in pairs))
    return ValueRange.of_bounds([widest] * len(pairs))


@dataclasses.dataclass
class _EquationCounts:
    n_equations: int = 0
    n_permutations: int = 0


def _count_equations(program: AlignedJaxpr) -> _EquationCounts:
    counts, pending, visited = _EquationCounts(), [program], set[int]()
    while pending:
        jaxpr = pending.pop()
        if id(jaxpr) in visited:
            continue
        visited.add(id(jaxpr))
        for equation in jaxpr.equations:
            counts.n_equations += 1
            counts.n_permutations += equation.name == "ppermute"
            pending += [body for bodies in equation.bodies.values() for body in bodies]
    return counts


def _permutations_text(n: int) -> str:
    if not n:
        return "the program has none"
    which = "one ppermute follows" if n == 1 else f"{n} ppermutes follow"
    return f"{which} the same rule on every size"


def _fails(name: str, what: str) -> Obligation:
    return Obligation(name=name, holds=False, what=what)
