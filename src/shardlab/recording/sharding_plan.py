"""The shardings of the program around shard_maps, and the collectives of each equation there."""

from __future__ import annotations

import dataclasses

from shardlab._jax.explicit_collectives import Entries, ExplicitEquation

# An equation and the calls around it: a jaxpr that is called twice has the same equations.
EquationKey = tuple[tuple[int, ...], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EquationShardings:
    """The shardings of the operands and results of an equation, and its collectives."""

    operands: tuple[Entries | None, ...]
    results: tuple[Entries | None, ...]
    explicit: ExplicitEquation = dataclasses.field(default_factory=ExplicitEquation)


@dataclasses.dataclass(kw_only=True)
class ProgramShardings:
    """The shardings of all inputs and equations outside of shard_map."""

    inputs: tuple[Entries | None, ...] = ()
    equations: dict[EquationKey, EquationShardings] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
