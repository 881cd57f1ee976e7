"""Deadlocks and mismatched collectives, decided from records alone."""

from __future__ import annotations

import dataclasses

import pytest

from shardlab.checks.check_deadlock import find_deadlocks, find_mismatched_collectives
from shardlab.collectives.call import CollectiveCall, ControlScope
from shardlab.findings.source import SourceLocation
from shardlab.tracing.observation import Observation, ProgramPattern

HERE, CONDITION = SourceLocation("step.py", 12, "body"), SourceLocation("step.py", 11, "body")
MESH = (("data", 2), ("model", 4))
PSUM = CollectiveCall(
    op="psum",
    mesh_axes=("data",),
    shape=(3,),
    dtype="float32",
    payload_bytes=12,
    wire_bytes=12,
    count=1,
    phase="forward",
    source=SourceLocation("step.py", 13),
)


def cond(branch, varies=("data",), id=0, n_branches=2):
    return ControlScope(
        kind="cond",
        source=HERE,
        id=id,
        length=None,
        branch=branch,
        n_branches=n_branches,
        varies=varies,
        predicate=CONDITION,
    )


def loop(varies=("data",)):
    return ControlScope(kind="while", source=HERE, id=0, varies=varies, predicate=CONDITION)


def under(call, *scopes, **changes):
    return dataclasses.replace(call, within=scopes, **changes)


def condition_pattern(outcomes, axes=("data",), depends_on="mesh", **facts):
    facts = {"arguments": (), "iteration": None, "is_same_call": False, **facts}
    return ProgramPattern(
        "divergent_condition",
        CONDITION,
        {"scope": 0, "axes": axes, "outcomes": outcomes, "depends_on": depends_on} | facts,
    )


def observed(*calls, patterns=(), mesh=MESH):
    return Observation(program="step", mesh=mesh, calls=calls, patterns=tuple(patterns))


# ------------------------------------------------------------------------------------ which calls


@pytest.mark.parametrize(
    ("op", "axes", "varies", "hangs"),
    [
        ("psum", ("data",), ("data",), True),
        ("psum", ("data", "model"), ("model",), True),
        ("psum", ("data",), ("model",), False),
        ("all_gather", ("model",), (), False),
        ("ppermute", ("data",), ("model",), True),
        ("ppermute", ("data",), (), False),
    ],
)
def test_a_call_can_block_if_it_shares_a_mesh_axis_with_the_condition(op, axes, varies, hangs):
    call = under(PSUM, cond(1, varies), op=op, mesh_axes=axes)
    findings = find_deadlocks(observed(call))
    assert [finding.code for finding in findings] == ["hazard.deadlock"] * hangs
    if findings:
        assert findings[0].where == PSUM.source
        assert f"the condition: {CONDITION}" in findings[0].shows


def test_devices_diverge_in_a_while_loop_and_not_in_a_scan():
    scan = ControlScope(kind="scan", source=HERE, id=0, length=4)
    assert find_deadlocks(observed(under(PSUM, scan))) == []
    (finding,) = find_deadlocks(observed(under(PSUM, scan, loop())))
    assert "run a different number of loop iterations" in finding.what
    assert "lax.pmax(unfinished, 'data')" in finding.fix


def test_an_outer_condition_counts_as_well_as_an_inner_one():
    call = under(PSUM, cond(1, ("data",)), cond(0, (), id=1))
    assert len(find_deadlocks(observed(call))) == 1


def test_the_backward_pass_of_a_branch_is_not_reported_again():
    backward = under(PSUM, cond(1, id=7), phase="backward")
    assert len(find_deadlocks(observed(under(PSUM, cond(1)), backward))) == 1
    assert len(find_deadlocks(observed(backward))) == 1


# ------------------------------------------------------------------------------ which devices


def reported(outcomes, axes=("data",), mesh=MESH, call=None, **facts):
    call = call or under(PSUM, cond(1, axes))
    pattern = condition_pattern(outcomes, axes, **facts)
    findings = find_deadlocks(observed(call, patterns=[pattern], mesh=mesh))
    return (findings[0].severity, findings[0].shows[1]) if findings else None


def test_known_devices_are_named_also_on_a_large_mesh():
    assert reported((1, 0)) == (
        "error",
        "data=0 takes branch 1 (true); data=1 takes branch 0 (false)",
    )
    large = tuple(int(n == 0) for n in range(512))
    text = "data=0 takes branch 1 (true); data=1..511 take branch 0 (false)"
    assert reported(large, mesh=(("data", 512),)) == ("error", text)


def test_a_condition_that_is_always_the_same_is_no_finding():
    assert reported((1, 1)) is None
    assert reported((0, 0)) is None


def test_a_condition_that_is_the_same_with_these_arguments_is_a_warning():
    severity, text = reported((1, 1), depends_on="arguments", arguments=("x",))
    assert severity == "warning"
    assert text == "which devices take which branch depends on the values of 'x'"


def test_an_unknown_condition_names_what_it_depends_on():
    severity, text = reported(None, depends_on="arguments", arguments=("params['w']", "x"))
    assert severity == "error"
    assert text == "which devices take which branch depends on the values of 'params['w']', 'x'"


def test_devices_of_different_groups_may_diverge():
    # It may vary over both axes and does along 'model' alone, while the psum is over 'data'.
    along_model = (0, 0, 1, 1, 0, 0, 1, 1)
    assert reported(along_model, ("data", "model")) is None
    along_data = (0, 0, 0, 0, 1, 1, 1, 1)
    assert (
        reported(along_data, ("data", "model"))[1]
        == "data=1 takes branch 1 (true); data=0 takes branch 0 (false)"
    )


def test_axis_index_groups_may_diverge_from_each_other():
    groups = {"groups": [[0, 1], [2, 3]]}
    call = under(PSUM, cond(1, ("model",)), mesh_axes=("model",), details=groups)
    assert reported((1, 1, 0, 0), ("model",), call=call) is None
    assert reported((1, 0, 0, 0), ("model",), call=call) is not None


def test_a_loop_reports_after_which_iteration_which_devices_leave():
    call = under(PSUM, loop(("model",)), mesh_axes=("model",))
    assert reported((1, 0, 0, 1), ("model",), call=call, iteration=4) == (
        "error",
        "after 3 iterations model=1,2 leave the loop and model=0,3 continue",
    )


# ------------------------------------------------------------------------- collectives that differ


def mixed(first, second, **facts):
    calls = [under(PSUM, cond(0), **first), under(PSUM, cond(1), **second)]
    patterns = [condition_pattern((1, 0), **facts)]
    assert find_deadlocks(observed(*calls, patterns=patterns)) == []
    (finding,) = find_mismatched_collectives(observed(*calls, patterns=patterns))
    return finding


def test_a_psum_matched_with_a_pmax_gives_wrong_values():
    finding = mixed({}, {"op": "pmax"})
    assert (finding.cause, finding.severity) == ("garbage", "error")
    assert finding.shows[2:] == (
        "branch 0 (false): psum over 'data' of float32[3] at line 13",
        "branch 1 (true): pmax over 'data' of float32[3] at line 13",
    )


def test_collectives_of_different_kinds_or_axes_hang():
    assert mixed({}, {"op": "all_gather"}).cause == "hangs"
    assert mixed({}, {"mesh_axes": ("data", "model")}).cause == "hangs"


def test_the_same_calls_of_the_same_values_are_a_warning_only():
    assert mixed({}, {}).severity == "error"
    finding = mixed({}, {}, is_same_call=True)
    assert (finding.cause, finding.severity) == ("same_calls", "warning")


def test_a_third_branch_without_a_collective_makes_it_a_deadlock():
    calls = [under(PSUM, cond(b, n_branches=3)) for b in (0, 1)]
    assert find_mismatched_collectives(observed(*calls)) == []
    (finding,) = find_deadlocks(observed(*calls))
    assert "only branch 0, branch 1 call it" in finding.shows
