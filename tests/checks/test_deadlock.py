"""Deadlocks and mixed collectives, decided from records alone."""

from __future__ import annotations

import dataclasses

import pytest

from shardlab.checks.check_deadlock import deadlocks, mixed_collectives
from shardlab.collectives.call import CollectiveCall, ControlScope
from shardlab.findings.source import SourceLocation
from shardlab.tracing.observation import Observation, ProgramPattern

HERE, CHOICE = SourceLocation("step.py", 12, "body"), SourceLocation("step.py", 11, "body")
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
        predicate=CHOICE,
    )


def loop(varies=("data",)):
    return ControlScope(kind="while", source=HERE, id=0, varies=varies, predicate=CHOICE)


def under(call, *scopes, **changes):
    return dataclasses.replace(call, within=scopes, **changes)


def ways(outcomes, axes=("data",), rests_on="mesh", **facts):
    facts = {"arguments": (), "turn": None, "alike": False, **facts}
    return ProgramPattern(
        "ways",
        CHOICE,
        {"scope": 0, "axes": axes, "outcomes": outcomes, "rests_on": rests_on} | facts,
    )


def seen(*calls, clues=(), mesh=MESH):
    return Observation(program="step", mesh=mesh, calls=calls, clues=tuple(clues))


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
def test_a_call_is_in_danger_if_its_axes_meet_those_of_the_choice(op, axes, varies, hangs):
    call = under(PSUM, cond(1, varies), op=op, mesh_axes=axes)
    found = deadlocks(seen(call))
    assert [each.code for each in found] == ["hazard.deadlock"] * hangs
    if found:
        assert found[0].where == PSUM.source
        assert f"the choice: {CHOICE}" in found[0].shows


def test_a_scan_parts_nobody_and_a_while_does():
    scan = ControlScope(kind="scan", source=HERE, id=0, length=4)
    assert deadlocks(seen(under(PSUM, scan))) == []
    (found,) = deadlocks(seen(under(PSUM, scan, loop())))
    assert "turn a loop a different number of times" in found.what
    assert "lax.pmax(unfinished, 'data')" in found.fix


def test_an_outer_choice_counts_as_well_as_an_inner_one():
    call = under(PSUM, cond(1, ("data",)), cond(0, (), id=1))
    assert len(deadlocks(seen(call))) == 1


def test_the_backward_pass_of_a_branch_is_not_told_again():
    backward = under(PSUM, cond(1, id=7), phase="backward")
    assert len(deadlocks(seen(under(PSUM, cond(1)), backward))) == 1
    assert len(deadlocks(seen(backward))) == 1


# --------------------------------------------------------------------------------- who goes where


def told(outcomes, axes=("data",), mesh=MESH, call=None, **facts):
    call = call or under(PSUM, cond(1, axes))
    found = deadlocks(seen(call, clues=[ways(outcomes, axes, **facts)], mesh=mesh))
    return (found[0].severity, found[0].shows[1]) if found else None


def test_known_places_are_named_also_on_a_large_mesh():
    assert told((1, 0)) == ("error", "data=0 takes branch 1 (true); data=1 takes branch 0 (false)")
    large = tuple(int(n == 0) for n in range(512))
    words = "data=0 takes branch 1 (true); data=1..511 take branch 0 (false)"
    assert told(large, mesh=(("data", 512),)) == ("error", words)


def test_a_choice_that_is_always_the_same_is_no_finding():
    assert told((1, 1)) is None
    assert told((0, 0)) is None


def test_a_choice_that_the_arguments_given_make_alike_is_a_warning():
    severity, words = told((1, 1), rests_on="arguments", arguments=("x",))
    assert severity == "warning"
    assert words == "which devices go which way rests on the values of 'x'"


def test_a_choice_that_nobody_knows_names_what_it_rests_on():
    severity, words = told(None, rests_on="arguments", arguments=("params['w']", "x"))
    assert severity == "error"
    assert words == "which devices go which way rests on the values of 'params['w']', 'x'"


def test_devices_that_need_not_meet_may_part():
    # It may vary over both axes and does along 'model' alone, while the psum is over 'data'.
    along_model = (0, 0, 1, 1, 0, 0, 1, 1)
    assert told(along_model, ("data", "model")) is None
    along_data = (0, 0, 0, 0, 1, 1, 1, 1)
    assert (
        told(along_data, ("data", "model"))[1]
        == "data=1 takes branch 1 (true); data=0 takes branch 0 (false)"
    )


def test_groups_that_stay_together_may_part_from_each_other():
    groups = {"groups": [[0, 1], [2, 3]]}
    call = under(PSUM, cond(1, ("model",)), mesh_axes=("model",), details=groups)
    assert told((1, 1, 0, 0), ("model",), call=call) is None
    assert told((1, 0, 0, 0), ("model",), call=call) is not None


def test_a_loop_says_after_which_turn_who_leaves():
    call = under(PSUM, loop(("model",)), mesh_axes=("model",))
    assert told((1, 0, 0, 1), ("model",), call=call, turn=4) == (
        "error",
        "after 3 turns model=1,2 leave and model=0,3 go on",
    )


# ------------------------------------------------------------------------- collectives that differ


def mixed(first, second, **facts):
    calls = [under(PSUM, cond(0), **first), under(PSUM, cond(1), **second)]
    clues = [ways((1, 0), **facts)]
    assert deadlocks(seen(*calls, clues=clues)) == []
    (found,) = mixed_collectives(seen(*calls, clues=clues))
    return found


def test_a_sum_that_meets_a_maximum_ends_in_garbage():
    found = mixed({}, {"op": "pmax"})
    assert (found.cause, found.severity) == ("garbage", "error")
    assert found.shows[2:] == (
        "branch 0 (false): psum over 'data' of float32[3] at line 13",
        "branch 1 (true): pmax over 'data' of float32[3] at line 13",
    )


def test_kinds_of_exchange_that_never_meet_hang():
    assert mixed({}, {"op": "all_gather"}).cause == "hangs"
    assert mixed({}, {"mesh_axes": ("data", "model")}).cause == "hangs"


def test_the_same_calls_of_the_same_values_are_a_warning_only():
    assert mixed({}, {}).severity == "error"
    found = mixed({}, {}, alike=True)
    assert (found.cause, found.severity) == ("same_calls", "warning")


def test_a_third_branch_that_says_nothing_makes_it_a_deadlock():
    calls = [under(PSUM, cond(b, n_branches=3)) for b in (0, 1)]
    assert mixed_collectives(seen(*calls)) == []
    (found,) = deadlocks(seen(*calls))
    assert "only branch 0, branch 1 call it" in found.shows
