"""The program around shard_maps: the sharding that the compiler gives to each value there.

A jit has global arrays, and the compiler decides how they are sharded. Shardy's passes, which XLA
runs too, are asked twice:

1. The program is lowered once more with an inspection of every intermediate value, also in the
   bodies of scans; an inspection does not change what is propagated.
2. Each equation is lowered alone, with the shardings of its operands and results fixed; the
   collectives that Shardy inserts there belong to that equation.

This is an approximation of the compiled program: XLA merges, splits and moves collectives later;
`docs/conformance.md` lists how they differ. Values inside while loops and branches outside
shard_map have no sharding here.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from shardlab import _jax
from shardlab._jax.explicit_collectives import Entries, ExplicitEquation, explicit_equation
from shardlab.recording.opaque_calls import is_opaque_call
from shardlab.recording.product_strategy import choose_product_strategy, scatter_sum
from shardlab.recording.sharding_plan import EquationKey, EquationShardings, ProgramShardings
from shardlab.simulator.interpreter.rules.calls import called_jaxpr
from shardlab.simulator.interpreter.shard_boundary import spec_entries
from shardlab.tracing.stage import StagedProgram, simulated_on

_MAX_VALUES = 2000
_MAX_EQUATIONS = 300  # that are lowered one by one


@dataclasses.dataclass
class _Visit:
    key: EquationKey
    eqn: Any
    operands: list[int | None]  # the number of the value, None for a literal
    results: list[int]
    loop: _LoopBody | None = None  # of a scan


@dataclasses.dataclass
class _LoopBody:
    inputs: list[int | None]
    visits: list[_Visit]
    outputs: list[int | None]
    jaxpr: Any


def propagate_shardings(staged: StagedProgram) -> ProgramShardings:
    """Return the shardings of a program; empty ones if it has none, or if they are not known."""
    inner, _ = _jax.open_jaxpr(staged.jaxpr)
    visits, n_values = _visit_equations(staged.jaxpr)
    if not any(visit.eqn.primitive.name != "shard_map" for visit in visits):
        return ProgramShardings()
    if n_values > _MAX_VALUES:
        return ProgramShardings(
            notes=["Shardings outside shard_map are not shown: too many values."]
        )
    try:
        with simulated_on(staged.mesh):
            return _propagate(staged, inner, visits)
    except Exception as error:
        # The recording is right without them; what they would add is how values are placed.
        text = str(error).strip().splitlines()[:1]
        reason = f"{type(error).__name__}: {text[0][:120] if text else ''}"
        return ProgramShardings(notes=[f"Shardings outside shard_map are not shown ({reason})."])


def _visit_equations(jaxpr: Any) -> tuple[list[_Visit], int]:
    """Return the equations outside of shard_maps, with calls and scans entered."""
    visits: list[_Visit] = []
    inner, _ = _jax.open_jaxpr(jaxpr)
    numbers = {var: number for number, var in enumerate((*inner.invars, *inner.constvars))}
    count = [len(numbers)]
    _visit_jaxpr(inner, numbers, (), visits, count)
    return visits, count[0]


def _visit_jaxpr(
    inner: Any,
    numbers: dict[Any, int],
    path: tuple[int, ...],
    visits: list[_Visit],
    count: list[int],
) -> list[int | None]:
    def number_of(atom: Any) -> int | None:
        return None if isinstance(atom, _jax.Literal) else numbers.get(atom)

    for eqn in inner.eqns:
        operands = [number_of(atom) for atom in eqn.invars]
        body = called_jaxpr(eqn.primitive.name, eqn.params)
        if body is not None and not is_opaque_call(eqn):
            called, consts = _jax.open_jaxpr(body)
            known = [number for number in operands if number is not None]
            if not consts and len(known) == len(operands):
                inside = dict(zip(called.invars, known, strict=True))
                results = _visit_jaxpr(called, inside, (*path, id(eqn)), visits, count)
                numbers.update(
                    (var, number)
                    for var, number in zip(eqn.outvars, results, strict=True)
                    if number is not None
                )
                if None not in results:
                    continue
        new = _new_numbers(count, len(eqn.outvars))
        numbers.update(zip(eqn.outvars, new, strict=True))
        loop = _visit_scan(eqn, path, operands, count) if eqn.primitive.name == "scan" else None
        visits.append(_Visit((path, id(eqn)), eqn, operands, new, loop))
    return [number_of(atom) for atom in inner.outvars]


def _new_numbers(count: list[int], n: int) -> list[int]:
    count[0] += n
    return list(range(count[0] - n, count[0]))


def _visit_scan(
    eqn: Any, path: tuple[int, ...], operands: Sequence[int | None], count: list[int]
) -> _LoopBody | None:
    """Return the equations of the body of a scan; None if it has constants of its own."""
    body, consts = _jax.open_jaxpr(eqn.params["jaxpr"])
    if consts:
        return None
    n_consts, _ = _jax.scan_operand_counts(eqn.params)
    # A constant of the loop is the value outside; what is carried or sliced is another one.
    inputs = [*operands[:n_consts], *_new_numbers(count, len(body.invars) - n_consts)]
    numbers = {
        var: number for var, number in zip(body.invars, inputs, strict=True) if number is not None
    }
    visits: list[_Visit] = []
    outputs = _visit_jaxpr(body, numbers, (*path, id(eqn)), visits, count)
    return _LoopBody(inputs, visits, outputs, body)


def _propagate(staged: StagedProgram, inner: Any, visits: list[_Visit]) -> ProgramShardings:
    """Lower the program with an inspection of every value, and read the propagated shardings."""
    by_number: dict[int, Any] = {}
    inspection = _Inspection(by_number)
    outputs = _output_numbers(inner, visits)

    def run(*args: Any) -> list[Any]:
        values: dict[int, Any] = dict(enumerate((*args, *_jax.open_jaxpr(staged.jaxpr)[1])))
        inspection.run_equations(visits, values)
        return [values[number] for number in outputs]

    shapes = [
        jax.ShapeDtypeStruct(
            var.aval.shape,
            var.aval.dtype,
            sharding=sharding if isinstance(sharding, NamedSharding) else None,
        )
        for var, sharding in zip(inner.invars, _input_shardings(staged, inner), strict=True)
    ]
    requested = _requested_results(staged, inner, visits)
    out_shardings = [requested.get(number) for number in outputs]
    compiled = jax.jit(run, out_shardings=out_shardings).trace(*shapes).lower().compile()
    by_number.update(enumerate(compiled.input_shardings[0]))
    # What the results of a jit are is known better than by an inspection: uneven ones are not.
    by_number.update(zip(outputs, compiled.output_shardings, strict=True))
    mesh = next((s.mesh for s in by_number.values() if isinstance(s, NamedSharding)), None)
    if mesh is None:
        return ProgramShardings()
    entries = {number: _entries(sharding) for number, sharding in by_number.items()}
    shardings = ProgramShardings(
        inputs=tuple(entries.get(number) for number in range(len(inner.invars)))
    )
    _add_equations(shardings, visits, entries, mesh)
    return shardings


class _Inspection:
    """Evaluates equations in the current trace, with an inspection of each result."""

    def __init__(self, by_number: dict[int, Any]) -> None:
        self._by_number = by_number

    def run_equations(self, visits: Sequence[_Visit], values: dict[int, Any]) -> None:
        """Evaluate equations; `values` has what is computed so far, by its number."""
        for visit in visits:
            operands = _read_values(visit.eqn.invars, visit.operands, values)
            if visit.loop is not None:
                outs = self._run_scan(visit, visit.loop, operands, values)
            else:
                outs = _jax.bind_primitive(visit.eqn.primitive, operands, visit.eqn.params)
            values.update(zip(visit.results, outs, strict=True))
            self._inspect(visit.results, values)

    def _run_scan(
        self, visit: _Visit, loop: _LoopBody, operands: Sequence[Any], values: dict[int, Any]
    ) -> list[Any]:
        params = visit.eqn.params
        n_consts, n_carry = _jax.scan_operand_counts(params)

        def run_body(carry: Any, row: Any) -> Any:
            inside = dict(values)
            numbers = loop.inputs[n_consts:]
            inside.update(
                (number, value)
                for number, value in zip(numbers, (*carry, *row), strict=True)
                if number is not None
            )
            self._inspect([number for number in numbers if number is not None], inside)
            self.run_equations(loop.visits, inside)
            outs = _read_values(loop.jaxpr.outvars, loop.outputs, inside)
            return outs[:n_carry], outs[n_carry:]

        carry, rows = lax.scan(
            run_body,
            list(operands[n_consts:][:n_carry]),
            list(operands[n_consts + n_carry :]),
            length=params["length"],
            reverse=params["reverse"],
        )
        return [*carry, *rows]

    def _inspect(self, numbers: Sequence[int], values: dict[int, Any]) -> None:
        for number in numbers:
            if not _jax.is_extended(values[number].dtype):  # random keys have no such call
                store = functools.partial(self._by_number.__setitem__, number)
                jax.debug.inspect_array_sharding(values[number], callback=store)


def _read_values(
    atoms: Sequence[Any], numbers: Sequence[int | None], values: dict[int, Any]
) -> list[Any]:
    return [
        _jax.literal_value(atom) if number is None else values[number]
        for atom, number in zip(atoms, numbers, strict=True)
    ]


def _input_shardings(staged: StagedProgram, inner: Any) -> Sequence[Any]:
    shardings = staged.shardings
    return shardings if len(shardings) == len(inner.invars) else [None] * len(inner.invars)


def _requested_results(
    staged: StagedProgram, inner: Any, visits: list[_Visit]
) -> dict[int, NamedSharding]:
    """Return the out_shardings of the jit by the number of the value that they are for."""
    numbers = _numbers_of_results(visits)
    return {
        numbers[atom]: sharding
        for atom, sharding in zip(inner.outvars, staged.result_shardings, strict=False)
        if isinstance(sharding, NamedSharding)
        and not isinstance(atom, _jax.Literal)
        and atom in numbers
    }


def _output_numbers(inner: Any, visits: Sequence[_Visit]) -> list[int]:
    """Return the numbers of the values that the program returns."""
    numbers = _numbers_of_results(visits)
    return list(
        dict.fromkeys(
            numbers[atom]
            for atom in inner.outvars
            if not isinstance(atom, _jax.Literal) and atom in numbers
        )
    )


def _numbers_of_results(visits: Sequence[_Visit]) -> dict[Any, int]:
    return {
        var: number
        for visit in visits
        if not visit.key[0]
        for var, number in zip(visit.eqn.outvars, visit.results, strict=True)
    }


def _entries(sharding: Any) -> Entries | None:
    return tuple(spec_entries(sharding.spec)) if isinstance(sharding, NamedSharding) else None


def _add_equations(
    shardings: ProgramShardings,
    visits: Sequence[_Visit],
    entries: dict[int, Entries | None],
    mesh: Any,
) -> None:
    cache: dict[Any, ExplicitEquation] = {}
    for visit in _with_loop_bodies(visits):
        operands = tuple(None if n is None else entries.get(n) for n in visit.operands)
        results = tuple(entries.get(number) for number in visit.results)
        explicit = ExplicitEquation()
        if _may_communicate(visit.eqn, operands, results):
            key = (_equation_text(visit.eqn), operands, results)
            if key not in cache and len(cache) < _MAX_EQUATIONS:
                cache[key] = _lower_equation(visit.eqn, operands, results, mesh)
            explicit = cache.get(key, explicit)
        shardings.equations[visit.key] = EquationShardings(
            operands=operands, results=results, explicit=explicit
        )


def _with_loop_bodies(visits: Sequence[_Visit]) -> Iterator[_Visit]:
    for visit in visits:
        if visit.loop is None:
            yield visit
        else:
            yield from _with_loop_bodies(visit.loop.visits)


def _equation_text(eqn: Any) -> str:
    types = [str(atom.aval) for atom in (*eqn.invars, *eqn.outvars)]
    return f"{eqn.primitive.name} {eqn.params} {types}"


def _may_communicate(
    eqn: Any, operands: Sequence[Entries | None], results: Sequence[Entries | None]
) -> bool:
    if eqn.primitive.name == "shard_map":
        return False
    known = [_trimmed(item) for item in (*operands, *results) if item is not None]
    if not any(known):
        return False  # nothing is sharded
    # An elementwise operation on operands that are sharded like its result stays local.
    if _jax.is_elementwise(eqn.primitive):
        shaped = [
            _trimmed(item or ())
            for item, atom in zip(operands, eqn.invars, strict=True)
            if atom.aval.shape == eqn.outvars[0].aval.shape
        ]
        return any(item != _trimmed(results[0] or ()) for item in shaped)
    return True


def _trimmed(entries: Entries) -> Entries:
    """Return the entries without those of trailing dimensions that are not sharded."""
    end = len(entries)
    while end and not entries[end - 1]:
        end -= 1
    return entries[:end]


def _lower_equation(
    eqn: Any, operands: Sequence[Entries | None], results: Sequence[Entries | None], mesh: Any
) -> ExplicitEquation:
    """Lower one equation with its shardings fixed, and return the collectives it needs."""
    strategy = choose_product_strategy(eqn, operands, results[0] if results else None)
    if strategy.gathers or strategy.scattered:
        explicit = _insert_collectives(eqn, strategy.operands, [strategy.result], mesh)
        collectives = scatter_sum(explicit.collectives, strategy.scattered, results[0])
        return dataclasses.replace(explicit, collectives=(*strategy.gathers, *collectives))
    return _insert_collectives(eqn, operands, results, mesh)


def _insert_collectives(
    eqn: Any, operands: Sequence[Entries | None], results: Sequence[Entries | None], mesh: Any
) -> ExplicitEquation:
    """Return what Shardy inserts into one equation."""
    traced = [i for i, atom in enumerate(eqn.invars) if not isinstance(atom, _jax.Literal)]

    def run_equation(*args: Any) -> Any:
        values = dict(zip(traced, args, strict=True))
        ins = [
            values[i] if i in values else _jax.literal_value(atom)
            for i, atom in enumerate(eqn.invars)
        ]
        return _jax.bind_primitive(eqn.primitive, ins, eqn.params)

    def place(entries: Entries | None) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*(e or None for e in entries or ())))

    shapes = [
        jax.ShapeDtypeStruct(
            eqn.invars[i].aval.shape, eqn.invars[i].aval.dtype, sharding=place(operands[i])
        )
        for i in traced
    ]
    try:
        # The shardings that the compiler returns have Auto axes: JAX rejects them within the mesh
        # of a program with Explicit axes.
        with jax.set_mesh(None):
            jitted = jax.jit(run_equation, out_shardings=[place(entries) for entries in results])
            explicit = explicit_equation(jitted.lower(*shapes))
    except Exception:
        return ExplicitEquation()  # an operation that cannot be lowered alone has no collectives
    # Operands of the lowered function are numbered without literals.
    collectives = tuple(
        dataclasses.replace(item, operand=None if item.operand is None else traced[item.operand])
        for item in explicit.collectives
    )
    return dataclasses.replace(explicit, collectives=collectives)
