"""Patterns in a program from which `checks` makes findings. They are found here, judged there.

Each module finds one kind of pattern and documents its facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlab.tracing.jaxpr_walk import Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.compile_errors import find_compile_errors, find_ppermute_axis_order
from shardlab.tracing.patterns.device_values import WalkedProgram
from shardlab.tracing.patterns.divergent_control_flow import find_divergent_conditions
from shardlab.tracing.patterns.loop_invariants import find_loop_invariants
from shardlab.tracing.patterns.placement import (
    find_indivisible_constraints,
    find_nothing_sharded,
    find_replicated_inputs,
    find_replicating_constraints,
)
from shardlab.tracing.patterns.replicated_sums import find_psums_of_replicated
from shardlab.tracing.patterns.sliced_results import find_sliced_results
from shardlab.tracing.patterns.value_uses import ReaderIndex


def find_patterns(
    closed_jaxpr: Any,
    sites: Sequence[Site],
    args: Sequence[Any] = (),
    paths: Sequence[str] = (),
    shardings: Sequence[Any] = (),
) -> tuple[ProgramPattern, ...]:
    """Return every pattern in a walked program.

    `args` are the flat arguments of the jaxpr, arrays if their values are known; `paths` are their
    names, such as `params['mlp']['kernel']`; `shardings` are those of the arguments, then of the
    results.
    """
    program = WalkedProgram(closed_jaxpr, sites, args, shardings)
    readers = ReaderIndex(program)
    return (
        *find_divergent_conditions(program, paths),
        *find_psums_of_replicated(program, readers),
        *find_ppermute_axis_order(program),
        *find_sliced_results(program, readers),
        *find_loop_invariants(program),
        *find_compile_errors(program),
        *find_indivisible_constraints(program),
        *find_replicated_inputs(program, paths),
        *find_replicating_constraints(program),
        *find_nothing_sharded(program),
    )
