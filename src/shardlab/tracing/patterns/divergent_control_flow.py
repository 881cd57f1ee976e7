"""Which devices take which branch, for conditions that vary over the mesh.

Finds the pattern `divergent_condition`, one for each cond or while loop that contains collectives
and whose condition varies over the mesh. Facts:

- `scope`: the id of the ControlScope; `axes`, `sizes`: the mesh axes over which the condition
  varies.
- `depends_on`: "mesh" (device indices and constants alone), "arguments", "carry" (of a loop around
  it), "callback"; `arguments`: the paths of the arguments that it depends on.
- `outcomes`: for each device in the order of `axes`, last axis fastest, the index of its branch (of
  a while loop: 1 if it continues, 0 if it leaves); None if unknown.
- `iteration`: of the while loop, or of the loop around a cond, for which the outcomes hold.
- `is_same_call`: whether all branches pass the same values to their collectives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardlab import _jax
from shardlab.collectives.call import ControlScope
from shardlab.simulator.interpreter import evaluate
from shardlab.simulator.interpreter.rules.collectives import COLLECTIVES
from shardlab.simulator.interpreter.stacked_array import StackedArray, arrange_dims, broadcast_over
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import Dependencies, UnknownValue, WalkedProgram

# A loop whose devices have not diverged after this many iterations is given up on.
_MAX_ITERATIONS = 64


def find_divergent_conditions(
    program: WalkedProgram, paths: Sequence[str]
) -> Iterator[ProgramPattern]:
    """Yield a pattern for each branch or loop with collectives in which devices may diverge."""
    for scope, site in _find_varying_scopes(program).items():
        dependencies = _condition_dependencies(program, site)
        outcomes, iteration = _find_outcomes(program, site, scope)
        facts = {
            "scope": scope.id,
            "axes": scope.varies,
            "sizes": tuple(site.context.axes.sizes[name] for name in scope.varies),
            "depends_on": _dependency_kind(dependencies),
            "arguments": tuple(
                paths[index] for index in sorted(dependencies.arguments) if index < len(paths)
            ),
            "outcomes": outcomes,
            "iteration": iteration,
            "is_same_call": site.name == "cond" and _pass_same_values(site.inner),
        }
        yield ProgramPattern("divergent_condition", scope.predicate or scope.source, facts)


def _find_varying_scopes(program: WalkedProgram) -> dict[ControlScope, Site]:
    """Return the scopes with a varying condition around collectives, each with its equation."""
    scopes: dict[ControlScope, Site] = {}
    for site in program.sites:
        if site.name not in COLLECTIVES:
            continue
        block: Block | None = site.block
        while block is not None and block.outer is not None:
            within, around = block.context.within, block.outer.context.within
            # One scope deeper than its caller: the caller is the cond or while itself.
            if len(within) > len(around) and within[-1].varies:
                scopes.setdefault(dataclasses.replace(within[-1], branch=None), block.outer)
            block = block.outer.block
    return scopes


def _dependency_kind(dependencies: Dependencies) -> str:
    if dependencies.on_effect:
        return "callback"
    if dependencies.on_carry:
        return "carry"
    return "arguments" if dependencies.arguments else "mesh"


def _condition_dependencies(program: WalkedProgram, site: Site) -> Dependencies:
    if site.name == "cond":
        return program.dependencies(site.block, site.eqn.invars[0])
    operands = [
        program.dependencies(site.block, site.eqn.invars[index])
        for index in _condition_inputs(site.eqn.params)
    ]
    return Dependencies(
        frozenset().union(*(operand.arguments for operand in operands)),
        any(operand.on_carry for operand in operands),
        any(operand.on_effect for operand in operands),
    )


# ------------------------------------------------------------------------------------- the values

Outcomes = tuple[int, ...]


def _find_outcomes(
    program: WalkedProgram, site: Site, scope: ControlScope
) -> tuple[Outcomes | None, int | None]:
    """Return the outcome per device, and the iteration in which it was found."""
    try:
        if site.name == "while":
            return _run_until_divergence(program, site, scope)
        predicate = site.eqn.invars[0]
        try:
            index = program.evaluate_value(site.block, predicate)
            return _outcome_by_device(index, site, scope), None
        except UnknownValue:
            # It depends on the carry of a loop around it, which is known at the start.
            index = program.evaluate_value(site.block, predicate, first_iteration=True)
            return _outcome_by_device(index, site, scope), 1
    except (
        Exception
    ):  # a value that cannot be simulated is unknown; that is no error of the program
        return None, None


def _outcome_by_device(condition: StackedArray, site: Site, scope: ControlScope) -> Outcomes:
    full = broadcast_over(condition, scope.varies, site.context.axes)
    array = arrange_dims(full, scope.varies, full.array.shape)
    n_branches = len(site.eqn.params["branches"]) if site.name == "cond" else 2
    # Like lax.switch, which clamps an index out of range.
    branches = np.clip(np.asarray(array).astype(np.int64), 0, n_branches - 1)
    return tuple(int(branch) for branch in branches.ravel())


def _run_until_divergence(
    program: WalkedProgram, loop: Site, scope: ControlScope
) -> tuple[Outcomes | None, int | None]:
    """Run a while loop on all devices until the first of them leaves.

    Until then all devices are in the loop, so its collectives are complete. Only what the condition
    depends on is computed.
    """
    params, axes = loop.eqn.params, loop.context.axes
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    needed = set(_condition_inputs(params))
    ins = [
        program.evaluate_value(loop.block, atom) if index in needed else None
        for index, atom in enumerate(loop.eqn.invars)
    ]
    cond_consts, body_consts = ins[:n_cond], ins[n_cond : n_cond + n_body]
    carry = ins[n_cond + n_body :]
    for iteration in range(1, _MAX_ITERATIONS + 1):
        (condition,) = _evaluate_outputs(axes, params["cond_jaxpr"], [*cond_consts, *carry], [0])
        outcomes = _outcome_by_device(condition, loop, scope)
        if len(set(outcomes)) > 1 or not outcomes[0]:
            return outcomes, iteration
        live = [index for index, value in enumerate(carry) if value is not None]
        results = _evaluate_outputs(axes, params["body_jaxpr"], [*body_consts, *carry], live)
        new_carry = dict(zip(live, results, strict=True))
        carry = [new_carry.get(index) for index in range(len(carry))]
    return None, None


def _evaluate_outputs(
    axes: Any, jaxpr: Any, ins: Sequence[Any], outs: Sequence[int]
) -> list[StackedArray]:
    """Return some outputs of a jaxpr, computing only what they need."""
    inner, consts = _jax.open_jaxpr(jaxpr)
    values: dict[Any, Any] = dict(zip(inner.invars, ins, strict=True))
    values.update(
        (var, StackedArray(const)) for var, const in zip(inner.constvars, consts, strict=False)
    )

    def read_atom(atom: Any) -> StackedArray:
        return (
            StackedArray(_jax.literal_value(atom))
            if isinstance(atom, _jax.Literal)
            else values[atom]
        )

    for eqn in _live_equations(inner, outs)[0]:
        results = evaluate.evaluate_equation(axes, eqn, [read_atom(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return [read_atom(inner.outvars[index]) for index in outs]


def _live_equations(jaxpr: Any, outs: Sequence[int]) -> tuple[list[Any], list[bool]]:
    """Return the equations that some outputs depend on, and for each input whether they do."""
    live = {id(jaxpr.outvars[index]) for index in outs}
    equations = []
    for eqn in reversed(jaxpr.eqns):
        if any(id(var) in live for var in eqn.outvars):
            equations.append(eqn)
            live.update(map(id, eqn.invars))
    return equations[::-1], [id(var) in live for var in jaxpr.invars]


def _condition_inputs(params: dict[str, Any]) -> list[int]:
    """Return which inputs of a while loop its condition depends on, over all iterations."""
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    in_cond = _live_equations(_jax.open_jaxpr(params["cond_jaxpr"])[0], [0])[1]
    body = _jax.open_jaxpr(params["body_jaxpr"])[0]
    consts = [index for index in range(n_cond) if in_cond[index]]
    carry = {index for index, is_live in enumerate(in_cond[n_cond:]) if is_live}
    # A carry that the condition reads may be computed from another carry in the iteration before.
    while True:
        in_body = _live_equations(body, sorted(carry))[1]
        wider = carry | {index for index, is_live in enumerate(in_body[n_body:]) if is_live}
        if wider == carry:
            break
        carry = wider
    body_consts = [n_cond + index for index in range(n_body) if in_body[index]]
    return [*consts, *body_consts, *(n_cond + n_body + index for index in sorted(carry))]


# ------------------------------------------------------------------ the same values in every branch


def _pass_same_values(branches: Sequence[Block]) -> bool:
    """Return whether all branches pass the same values to their collectives, in the same order."""
    # Value numbering: equal computations get equal numbers, across all branches.
    numbers: dict[Any, int] = {}
    sequences = [_collective_values(branch, numbers) for branch in branches]
    return None not in sequences and all(sequence == sequences[0] for sequence in sequences)


def _collective_values(branch: Block, numbers: dict[Any, int]) -> list[int] | None:
    """Return the value number of each collective of a branch; None if one is nested deeper."""
    values: dict[Any, Any] = {var: ("in", index) for index, var in enumerate(branch.jaxpr.invars)}
    sequence = []
    for eqn in branch.jaxpr.eqns:
        # Value numbering does not look into calls, so nothing is known about a collective in there.
        if any(map(_has_collectives, _jax.inner_jaxprs(eqn.params))):
            return None
        ins = [
            ("literal", str(atom.val)) if isinstance(atom, _jax.Literal) else values.get(atom, atom)
            for atom in eqn.invars
        ]
        # jit equations carry the name of the function, which does not change the value.
        params = {key: value for key, value in eqn.params.items() if key != "name"}
        computation = (eqn.primitive.name, str(sorted(params.items(), key=str)), tuple(ins))
        number = numbers.setdefault(computation, len(numbers))
        values.update((var, (number, index)) for index, var in enumerate(eqn.outvars))
        if eqn.primitive.name in COLLECTIVES:
            sequence.append(number)
    return sequence


def _has_collectives(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in COLLECTIVES
        or any(map(_has_collectives, _jax.inner_jaxprs(eqn.params)))
        for eqn in _jax.open_jaxpr(jaxpr)[0].eqns
    )
