"""Patterns in a program that a check may make a finding of. Seen here, judged in checks/.

Each file here makes one kind of clue, and says what its facts are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlab.tracing.jaxpr_walk import Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.compile_errors import impossible, ppermute_orders
from shardlab.tracing.patterns.device_values import Program
from shardlab.tracing.patterns.divergent_control_flow import ways
from shardlab.tracing.patterns.loop_invariants import same_each_turn
from shardlab.tracing.patterns.placement import (
    nothing_sharded,
    uneven_constraints,
    whole_everywhere,
)
from shardlab.tracing.patterns.replicated_sums import sums_of_copies
from shardlab.tracing.patterns.sliced_results import slices
from shardlab.tracing.patterns.value_uses import Uses


def clues(
    closed_jaxpr: Any,
    sites: Sequence[Site],
    args: Sequence[Any] = (),
    paths: Sequence[str] = (),
    shardings: Sequence[Any] = (),
) -> tuple[ProgramPattern, ...]:
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
