"""Which devices go which way, where a branch or a loop may part them.

Makes the clue `ways`, one for each cond or while loop that holds collectives and whose choice
varies over the mesh. Its facts:

- `scope`: the id of the Scope; `axes`, `sizes`: the mesh axes over which the choice varies.
- `rests_on`: "mesh" (coordinates and constants alone), "arguments", "turns" (what a loop carries),
  "elsewhere" (a callback); `arguments`: the paths of those that it rests on.
- `outcomes`: for each device in the order of `axes`, last axis fastest, the number of its branch
  (of a while loop: 1 where it goes on, 0 where it leaves); None where nobody can tell.
- `turn`: in which turn of a while loop, or of the loop around a cond, that is so.
- `alike`: whether all branches hand the same values to their collectives.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from shardlab import _jax
from shardlab.collectives.call import ControlScope
from shardlab.simulator.interpreter import evaluate as simulate
from shardlab.simulator.interpreter.rules.collectives import COLLECTIVES
from shardlab.simulator.interpreter.stacked_array import StackedArray, arrange, broadcast_over
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import Leaves, NotKnown, Program

# A loop that has not parted its devices after so many turns is given up on.
_MOST_TURNS = 64


def ways(program: Program, paths: Sequence[str]) -> Iterator[ProgramPattern]:
    """Yield a clue for each branch or loop with collectives that devices may take differently."""
    for scope, parting in _partings(program).items():
        leaves = _leaves(program, parting)
        outcomes, turn = _outcomes(program, parting, scope)
        facts = {
            "scope": scope.id,
            "axes": scope.varies,
            "sizes": tuple(parting.place.axes.sizes[name] for name in scope.varies),
            "rests_on": _rests_on(leaves),
            "arguments": tuple(paths[n] for n in sorted(leaves.arguments) if n < len(paths)),
            "outcomes": outcomes,
            "turn": turn,
            "alike": parting.name == "cond" and _alike(parting.inner),
        }
        yield ProgramPattern("ways", scope.predicate or scope.source, facts)


def _partings(program: Program) -> dict[ControlScope, Site]:
    """Return the scopes that part devices and hold collectives, each with its cond or while."""
    found: dict[ControlScope, Site] = {}
    for site in program.sites:
        if site.name not in COLLECTIVES:
            continue
        block: Block | None = site.block
        while block is not None and block.outer is not None:
            within, around = block.place.within, block.outer.place.within
            if len(within) > len(around) and within[-1].varies:
                found.setdefault(dataclasses.replace(within[-1], branch=None), block.outer)
            block = block.outer.block
    return found


def _rests_on(leaves: Leaves) -> str:
    if leaves.elsewhere:
        return "elsewhere"
    if leaves.in_turns:
        return "turns"
    return "arguments" if leaves.arguments else "mesh"


def _leaves(program: Program, parting: Site) -> Leaves:
    if parting.name == "cond":
        return program.leaves(parting.block, parting.eqn.invars[0])
    needed = _deciding_inputs(parting.eqn.params)
    each = [program.leaves(parting.block, parting.eqn.invars[n]) for n in needed]
    return Leaves(
        frozenset().union(*(leaves.arguments for leaves in each)),
        any(leaves.in_turns for leaves in each),
        any(leaves.elsewhere for leaves in each),
    )


# ------------------------------------------------------------------------------------- the values

Outcomes = tuple[int, ...] | None


def _outcomes(program: Program, parting: Site, scope: ControlScope) -> tuple[Outcomes, int | None]:
    """Return who goes which way, and in which turn that was seen."""
    try:
        if parting.name == "cond":
            try:
                return _by_device(
                    program.value(parting.block, parting.eqn.invars[0]), parting, scope
                )
            except NotKnown:
                index = program.value(parting.block, parting.eqn.invars[0], first_turn=True)
                return (_by_device(index, parting, scope)[0], 1)
        return _turns(program, parting, scope)
    except Exception:  # whatever keeps us from knowing, the program is no worse for it
        return None, None


def _by_device(
    choice: StackedArray, parting: Site, scope: ControlScope
) -> tuple[Outcomes, int | None]:
    whole = broadcast_over(choice, scope.varies, parting.place.axes)
    array = arrange(whole, scope.varies, whole.array.shape)
    branches = len(parting.eqn.params["branches"]) if parting.name == "cond" else 2
    chosen = np.clip(np.asarray(array).astype(np.int64), 0, branches - 1)
    return tuple(int(n) for n in chosen.ravel()), None


def _turns(program: Program, loop: Site, scope: ControlScope) -> tuple[Outcomes, int | None]:
    """Turn the loop with all devices until the first of them leaves.

    Until then all are there, so that its collectives are real ones. Only what decides the condition
    is computed.
    """
    params, axes = loop.eqn.params, loop.place.axes
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    needed = set(_deciding_inputs(params))
    ins = [
        program.value(loop.block, atom) if n in needed else None
        for n, atom in enumerate(loop.eqn.invars)
    ]
    consts, body_consts, carry = ins[:n_cond], ins[n_cond : n_cond + n_body], ins[n_cond + n_body :]
    for turn in range(1, _MOST_TURNS + 1):
        (goes_on,) = _run_needed(axes, params["cond_jaxpr"], [*consts, *carry], [0])
        outcomes, _ = _by_device(goes_on, loop, scope)
        if outcomes is None or len(set(outcomes)) > 1 or not outcomes[0]:
            return outcomes, turn
        kept = [n for n, value in enumerate(carry) if value is not None]
        after = _run_needed(axes, params["body_jaxpr"], [*body_consts, *carry], kept)
        carry = [after[kept.index(n)] if n in kept else None for n in range(len(carry))]
    return None, None


def _run_needed(
    axes: Any, jaxpr: Any, ins: Sequence[Any], outs: Sequence[int]
) -> list[StackedArray]:
    """Return some outputs of a jaxpr, computing nothing that they do not need."""
    inner, consts = _jax.open_jaxpr(jaxpr)
    values: dict[Any, Any] = dict(zip(inner.invars, ins, strict=True))
    values.update((var, StackedArray(c)) for var, c in zip(inner.constvars, consts, strict=False))

    def read(atom: Any) -> StackedArray:
        return (
            StackedArray(_jax.literal_value(atom))
            if isinstance(atom, _jax.Literal)
            else values[atom]
        )

    for eqn in _needed(inner, outs)[0]:
        results = simulate.equation(axes, eqn, [read(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(inner.outvars[n]) for n in outs]


def _needed(jaxpr: Any, outs: Sequence[int]) -> tuple[list[Any], list[bool]]:
    """Return the equations that some outputs of a jaxpr rest on, and which of its inputs."""
    live = {id(jaxpr.outvars[n]) for n in outs}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if any(id(var) in live for var in eqn.outvars):
            kept.append(eqn)
            live.update(map(id, eqn.invars))
    return kept[::-1], [id(var) in live for var in jaxpr.invars]


def _deciding_inputs(params: dict[str, Any]) -> list[int]:
    """Return which inputs of a while loop its condition rests on, through any number of turns."""
    n_cond, n_body = params["cond_nconsts"], params["body_nconsts"]
    in_cond = _needed(_jax.open_jaxpr(params["cond_jaxpr"])[0], [0])[1]
    body = _jax.open_jaxpr(params["body_jaxpr"])[0]
    consts = [n for n in range(n_cond) if in_cond[n]]
    carry = {n for n, use in enumerate(in_cond[n_cond:]) if use}
    while True:
        in_body = _needed(body, sorted(carry))[1]
        wider = carry | {n for n, use in enumerate(in_body[n_body:]) if use}
        if wider == carry:
            break
        carry = wider
    body_consts = [n_cond + n for n in range(n_body) if in_body[n]]
    return [*consts, *body_consts, *(n_cond + n_body + n for n in sorted(carry))]


# ---------------------------------------------------------------------- same values in all branches


def _alike(branches: Sequence[Block]) -> bool:
    """Say whether all branches hand the same things to their collectives, in the same order."""
    numbers: dict[Any, int] = {}  # one for each way to compute something, shared by all branches
    handed = [_handed(branch, numbers) for branch in branches]
    return None not in handed and all(each == handed[0] for each in handed)


def _handed(branch: Block, numbers: dict[Any, int]) -> list[int] | None:
    """Return the number of what each collective of a branch is; None where one lies deeper."""
    known: dict[Any, Any] = {var: ("in", n) for n, var in enumerate(branch.jaxpr.invars)}
    handed = []
    for eqn in branch.jaxpr.eqns:
        if any(map(_communicates, _jax.inner_jaxprs(eqn.params))):
            return None
        ins = [
            ("literal", str(atom.val)) if isinstance(atom, _jax.Literal) else known.get(atom, atom)
            for atom in eqn.invars
        ]
        params = {key: value for key, value in eqn.params.items() if key != "name"}
        way = (eqn.primitive.name, str(sorted(params.items(), key=str)), tuple(ins))
        number = numbers.setdefault(way, len(numbers))
        known.update((var, (number, n)) for n, var in enumerate(eqn.outvars))
        if eqn.primitive.name in COLLECTIVES:
            handed.append(number)
    return handed


def _communicates(jaxpr: Any) -> bool:
    return any(
        eqn.primitive.name in COLLECTIVES or any(map(_communicates, _jax.inner_jaxprs(eqn.params)))
        for eqn in _jax.open_jaxpr(jaxpr)[0].eqns
    )
