"""Patterns in a program that a check may make a finding of. Seen here, judged in checks/.

Each file here makes one kind of clue, and says what its facts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlab.engine.clues.impossible import impossible
from shardlab.engine.clues.order import ppermute_orders
from shardlab.engine.clues.placement import (
    nothing_sharded,
    uneven_constraints,
    whole_everywhere,
)
from shardlab.engine.clues.slicing import slices
from shardlab.engine.clues.sums import sums_of_copies
from shardlab.engine.clues.turns import same_each_turn
from shardlab.engine.clues.uses import Uses
from shardlab.engine.clues.values import Program
from shardlab.engine.clues.ways import ways
from shardlab.engine.walk import Site
from shardlab.records.observation import Clue


def clues(
    closed_jaxpr: Any,
    sites: Sequence[Site],
    args: Sequence[Any] = (),
    paths: Sequence[str] = (),
    shardings: Sequence[Any] = (),
) -> tuple[Clue, ...]:
    """Return every pattern seen in a walked program.

    `args` are the flat arguments of the jaxpr, arrays where their values are known; `paths` are
    their names, such as `params['mlp']['kernel']`; `shardings` are theirs, then the results'.
    """
    program = Program(closed_jaxpr, sites, args, shardings)
    uses = Uses(program)
    return (
        *ways(program, paths),
        *sums_of_copies(program, uses),
        *ppermute_orders(program),
        *slices(program, uses),
        *same_each_turn(program),
        *impossible(program),
        *uneven_constraints(program),
        *whole_everywhere(program, paths),
        *nothing_sharded(program),
    )
