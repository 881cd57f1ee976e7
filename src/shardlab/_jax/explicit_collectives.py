"""The collectives that Shardy inserts into a lowered program, in their order.

Shardy's passes, which jaxlib contains, make every resharding of a program explicit: first as
reshards, then as collectives. The program here is one equation with the shardings of its operands
and results given, so each collective belongs either to an operand or to a result.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from jax._src.lib.mlir import ir, passmanager  # runs Shardy's passes

Entries = tuple[tuple[str, ...], ...]

_PIPELINE = (
    "builtin.module(sdy-propagation-pipeline,func.func(sdy-sharding-constraint-to-reshard),"
    "func.func(sdy-insert-explicit-reshards{enable-full-version=true}),"
    # The last one makes a reduce-scatter of an all-reduce and a slice.
    "func.func(sdy-reshard-to-collectives),canonicalize)"
)
_COLLECTIVE = re.compile(r"sdy\.(\w+) (.*?) ?%\S+ out_sharding=<@\w+, \[(.*?)\]> :", re.DOTALL)
_SHARDING = re.compile(r"sdy\.sharding = #sdy\.sharding_per_value<\[<@\w+, \[(.*?)\]>")
_AXIS = re.compile(r'"([^"]+)"')


@dataclasses.dataclass(frozen=True)
class InsertedCollective:
    """One collective: the axes it is over, what it moves, and the sharding afterwards."""

    kind: str  # all_reduce, all_gather, all_slice, reduce_scatter, all_to_all, collective_permute
    axes: tuple[str, ...]
    operand: int | None  # the operand that it moves before the equation; None for the result
    entries: Entries | None  # the axes of each dimension afterwards; None if an axis is split


@dataclasses.dataclass(frozen=True)
class ExplicitEquation:
    """The collectives of one equation, and the sharding of its result before those after it."""

    collectives: tuple[InsertedCollective, ...] = ()
    result_entries: Entries | None = None


def explicit_equation(lowered: Any) -> ExplicitEquation:
    """Return what Shardy inserts into a lowered program of one equation; nothing if it fails."""
    module = lowered.compiler_ir("stablehlo")
    with module.context:
        operation = module.operation.clone()
        try:
            passmanager.PassManager.parse(_PIPELINE).run(operation)
        except ir.MLIRError:
            return ExplicitEquation()
        for function in operation.regions[0].blocks[0].operations:
            if getattr(function, "name", None) is not None and str(function.name) == '"main"':
                return _read_function(function)
    return ExplicitEquation()


def _read_function(function: Any) -> ExplicitEquation:
    block = function.regions[0].blocks[0]
    # Which operand a value is, as long as only collectives were applied to it.
    operand_of = {argument: number for number, argument in enumerate(block.arguments)}
    collectives = []
    result_entries = None
    for op in block.operations:
        text = str(op)
        match = _COLLECTIVE.search(text)
        if match is None or not op.operation.name.startswith("sdy."):
            sharding = _SHARDING.search(text)
            result_entries = _parse_entries(sharding[1]) if sharding else result_entries
            continue
        source = operand_of.get(op.operands[0])
        if source is not None:
            operand_of[op.results[0]] = source
        collectives.append(
            InsertedCollective(
                kind=match[1],
                axes=tuple(dict.fromkeys(_AXIS.findall(match[2]))),
                operand=source,
                entries=_parse_entries(match[3]),
            )
        )
    return ExplicitEquation(tuple(collectives), result_entries)


def _parse_entries(text: str) -> Entries | None:
    """Return the axes of each dimension; None if an axis is used only in part, as in "x":(1)2."""
    if '":(' in text:
        return None
    return tuple(tuple(_AXIS.findall(part)) for part in re.findall(r"\{([^}]*)\}", text))
