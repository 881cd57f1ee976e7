"""All candidate edits of a program, in the order in which they are tried.

The findings decide which families are likely; inside a family the edit nearest to a finding is
first, then the smallest. Families take turns, so that one with many edits does not hide another.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from shardlab.findings.finding import Finding
from shardlab.fixes.branches import decide_together, select_afterwards
from shardlab.fixes.candidate_edit import CandidateEdit
from shardlab.fixes.hints import FixHints, hints_from_findings
from shardlab.fixes.missing_collectives import (
    add_collective,
    add_pcast,
    average_before_branch,
)
from shardlab.fixes.program_source import ProgramSource
from shardlab.fixes.specs import change_spec, check_varying_axes, correct_axis_name
from shardlab.fixes.terms import (
    count_term_once,
    move_term_out,
    offset_indices,
    reduce_before_function,
    sum_before_dividing,
)
from shardlab.fixes.wasted_communication import hoist_from_loop, scatter_sum, use_own_shard
from shardlab.fixes.wrong_collectives import (
    change_axes,
    change_scale,
    divide_by_axis_size,
    remove_collective,
    swap_sum_and_mean,
    turn_ring,
)

Family = Callable[[ProgramSource, FixHints], Iterator[CandidateEdit]]

_REDUCTION: tuple[Family, ...] = (
    swap_sum_and_mean,
    add_collective,
    remove_collective,
    change_axes,
)
# Of each code or cause: the families that usually repair it, the most likely first.
_LIKELY: dict[str, tuple[Family, ...]] = {
    "missing_psum": (add_collective, change_axes),
    "missing_pmean": (add_collective, change_axes),
    "missing_pmax": (add_collective, change_axes),
    "hazard.replicas_differ": (add_collective, change_axes, check_varying_axes),
    "factor_of_n": (swap_sum_and_mean, remove_collective, divide_by_axis_size, change_scale),
    "divided_by_n": (swap_sum_and_mean, change_scale, add_collective),
    "gradient_scaled_by_n": (
        swap_sum_and_mean,
        divide_by_axis_size,
        change_scale,
        remove_collective,
        check_varying_axes,
        add_collective,
    ),
    "bias_n_times": (move_term_out, count_term_once),
    "mean_of_means": (sum_before_dividing, reduce_before_function, add_collective),
    "only_shard_0": (offset_indices, change_spec),
    "local_reduction": (add_collective, reduce_before_function),
    "reversed_ppermute": (turn_ring,),
    "shards_permuted": (change_spec, change_axes, turn_ring, remove_collective),
    "hazard.deadlock": (
        average_before_branch,
        decide_together,
        select_afterwards,
        add_collective,
    ),
    "hazard.mismatched_collectives": (decide_together, select_afterwards, average_before_branch),
    "hazard.psum_of_replicated": (remove_collective, swap_sum_and_mean, change_spec),
    "hazard.ppermute_axis_order": (change_axes,),
    "hazard.constraint_replicates": (change_spec,),
    "waste.psum_then_slice": (scatter_sum,),
    "waste.all_gather_then_slice": (use_own_shard,),
    "waste.loop_invariant_collective": (hoist_from_loop,),
    "waste.replicated": (change_spec,),
    "spec.unknown_axis": (correct_axis_name,),
    "spec.rank": (change_spec,),
    "spec.indivisible": (change_spec,),
    "spec.wrong_argument": (change_spec,),
    "jax.rejected": (add_pcast, add_collective, change_spec, change_axes),
}
# What is tried when no cause is known, and after the likely families.
_ALL: tuple[Family, ...] = (
    *_REDUCTION,
    turn_ring,
    move_term_out,
    sum_before_dividing,
    reduce_before_function,
    divide_by_axis_size,
    change_scale,
    offset_indices,
    count_term_once,
    change_spec,
)


def list_edits(
    source: ProgramSource, findings: Sequence[Finding], file: str
) -> list[CandidateEdit]:
    """Return the edits to try for these findings, the most likely first, each once."""
    hints = hints_from_findings(findings, source.mesh_axes, file)
    likely: list[Family] = []
    # A cause says more than the code of its finding.
    for key in (*sorted(hints.causes), *sorted(hints.codes)):
        likely += [family for family in _LIKELY.get(key, ()) if family not in likely]
    is_error = any(finding.severity == "error" for finding in findings)
    is_value = bool(hints.codes & {"hazard.mesh_dependent", "hazard.replicas_differ"})
    others = [f for f in _ALL if f not in likely] if is_error and is_value else []
    edits = [*_in_turns(source, hints, likely), *_in_turns(source, hints, others)]
    unique: dict[str, CandidateEdit] = {}
    for edit in edits:
        text = edit.apply(source)
        # An edit that leaves no valid program is a bug of its family, not of the user.
        if text != source.text and _parses(text):
            unique.setdefault(text, edit)
    return list(unique.values())


def _in_turns(
    source: ProgramSource, hints: FixHints, families: Sequence[Family]
) -> Iterator[CandidateEdit]:
    columns = [_ordered(family(source, hints), hints) for family in families]
    for row in zip_longest(*columns):
        yield from (edit for edit in row if edit is not None)


def _ordered(edits: Iterator[CandidateEdit], hints: FixHints) -> list[CandidateEdit]:
    # Stable: where distance says nothing the family's own order stays, results before operands.
    return sorted(edits, key=lambda edit: hints.distance(edit.line) > 12)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
