"""Grading without any process: what is right, and what is said of what is not."""

import numpy as np
import pytest

from judge.handmade import call, case, copies, output, seen, verdicts
from shardlab.judge.cases import make_cases
from shardlab.judge.grading import wrong_values
from shardlab.judge.grading.grade import Right, grade
from shardlab.judge.grading.plain_values import grade_value
from shardlab.judge.grading.wrong_values import Cause
from shardlab.sharding.spec import Spec

ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)


def only(found):
    (verdict,) = found
    return verdict.code, verdict.cause, verdict.what


def test_a_run_that_gives_what_is_right_has_no_verdicts():
    run = seen(output(ROWS, "data", "data=4"))
    assert verdicts(case(), run, ROWS, specs=Spec("data")) == ()


@pytest.mark.parametrize(
    ("got", "sentence"),
    [
        (ROWS[:2], "has shape (2, 3), want (8, 3): did out_specs glue 1 of 4 shards?"),
        (np.tile(ROWS, (4, 1)), "did out_specs join 4 copies along 'data'?"),
        (np.stack([ROWS] * 4), "is array axis 0 that of 'data', stacked where it should be tiled?"),
        (ROWS[None], "array axis 0 of size 1 is too many."),
        (ROWS.T, "is it transposed?"),
        (ROWS.reshape(2, 12), "are pieces joined along array axis 1 that belong along 0?"),
        (ROWS[:5], "result has shape (5, 3), want (8, 3)."),
    ],
)
def test_a_shape_is_told_with_what_it_looks_like(got, sentence):
    code, _, what = only(verdicts(case(), seen(output(got, "", "data=4")), ROWS))
    assert code == "SHAPE"
    assert what.endswith(sentence)


def test_other_arrays_than_were_asked_for_are_named():
    run = seen(output(ROWS, "", "data=4", "['w']"))
    _, _, what = only(verdicts(case(), run, {"w": ROWS, "b": ROWS}))
    assert what == "The function returns result['w']; asked for was result['b'], result['w']."


@pytest.mark.parametrize(
    ("asked", "got", "sentence"),
    [
        (Spec("data"), "", "result is whole on every device; P('data') was asked."),
        (Spec(), "data", "result lies as P('data'); P() was asked."),
        (Spec("data"), "None,data", "result lies as P(None, 'data'); P('data') was asked."),
    ],
)
def test_a_layout_is_told_as_the_spec_that_describes_it(asked, got, sentence):
    square = np.arange(64, dtype=np.float32).reshape(8, 8)
    found = verdicts(case(), seen(output(square, got, "data=4")), square, specs=asked)
    assert only(found) == ("SHARD", "", sentence)


def test_the_order_of_mesh_axes_in_a_layout_is_told():
    mesh = "data=2,model=4"
    run = seen(output(ROWS, "(model,data)", mesh))
    found = verdicts(case(mesh), run, ROWS, specs=Spec(("data", "model")))
    what = "result lies as P(('model', 'data')); P(('data', 'model')) was asked."
    assert only(found) == ("SHARD", "", what)


def test_copies_are_compared_bit_for_bit_and_nan_equals_itself():
    nan = np.float32([1, np.nan])
    assert verdicts(case(), seen(copies([nan] * 4, "data=4")), nan) == ()
    close = [np.float32(1), np.float32(1), np.float32(1), np.nextafter(np.float32(1), 2)]
    assert only(verdicts(case(), seen(copies(close, "data=4")), np.float32(1)))[0] == "REPLICAS"


def test_copies_along_one_of_two_mesh_axes_are_told_along_it():
    mesh = "data=2,model=4"
    held = [np.float32(each) for each in (1, 1, 1, 1, 6, 6, 6, 6)]
    found = verdicts(case(mesh), seen(copies(held, mesh)), np.float32(7))
    assert only(found) == (
        "REPLICAS",
        "missing_psum",
        "Devices along 'data' hold 1, 6 for result, which add up to the answer 7: a psum is "
        "missing.",
    )


def test_a_first_device_that_is_right_is_no_missing_pmin():
    held = [np.float32([1, 2]) + device for device in range(4)]
    code, cause, what = only(verdicts(case(), seen(copies(held, "data=4")), held[0]))
    assert (code, cause) == ("REPLICAS", "")
    assert (
        what == "Devices along 'data' should hold the same result[0] and hold 1, 2, 3, 4; want 1."
    )


def test_a_wrong_value_without_a_cause_tells_where_and_on_which_devices():
    wrong = ROWS.copy()
    wrong[2:4] += [0, 5, 0]
    found = verdicts(case(), seen(output(wrong, "data", "data=4")), ROWS)
    what = "result[2, 1] is 12, want 7; 2 of 24 elements differ, on device 1 of 4."
    assert only(found) == ("WA", "", what)


@pytest.mark.parametrize(
    ("budget", "calls", "sentences"),
    [
        ({"psum": 1}, [call("psum")], []),
        ({"psum": 1}, [call("psum", count=3)], ["3 psum of 16 B; budget 1."]),
        (
            {"psum": 1},
            [call("psum", count=None)],
            ["A psum is in a loop whose length is not known before it runs."],
        ),
        ({"peak_bytes": 9}, [call("psum", count=None)], []),
        ({"psum": 1}, [call("psum", count=0)], []),
        ({"psum": 1}, [call("all_gather")], ["1 all_gather of 16 B; budget 0."]),
        ({"calls": 0}, [call("psum")], ["1 psum of 16 B; budget 0."]),
        ({"calls": 2}, [call("psum"), call("pmax")], []),
        (
            {"calls": 1},
            [call("psum"), call("pmax")],
            ["2 collectives; budget 1: 1 psum of 16 B, 1 pmax of 16 B."],
        ),
        (
            {"wire_bytes": 20},
            [call("psum")],
            ["24 B sent by each device; budget 20: 1 psum of 16 B."],
        ),
        (
            {"psum": 2, "payload_bytes": 16},
            [call("psum", count=2)],
            ["32 B put into collectives by each device; budget 16: 2 psum of 16 B."],
        ),
        (
            {"psum": 0},
            [call("psum", is_inserted=True)],
            ["1 psum of 16 B put in by the compiler; budget 0."],
        ),
        ({}, [call("psum", count=9)], []),
    ],
)
def test_what_is_sent_is_compared_with_the_budget(budget, calls, sentences):
    run = seen(output(ROWS, "data", "data=4"), calls=calls)
    found = verdicts(case(), run, ROWS, budget=budget)
    assert [verdict.what for verdict in found] == sentences
    assert {verdict.code for verdict in found} <= {"COMM"}
    assert all(verdict.fix for verdict in found)


def test_what_to_try_names_what_is_allowed():
    run = seen(output(ROWS, "data", "data=4"), calls=[call("all_gather")])
    (found,) = verdicts(case(), run, ROWS, budget={"psum": 1})
    assert found.fix == "do without all_gather: psum is what the task allows."
    (found,) = verdicts(case(requires=("psum",)), seen(output(ROWS, "", "data=4")), ROWS)
    assert found.fix.startswith("call jax.lax.psum inside of the shard_map")


def test_what_is_held_is_compared_with_the_budget():
    run = seen(output(ROWS, "data", "data=4"), peak_bytes=4096)
    found = verdicts(case(), run, ROWS, budget={"peak_bytes": 2048})
    assert only(found) == ("MEM", "", "A device holds 4,096 B at its peak; budget 2,048 B.")


def test_one_device_exchanges_nothing_so_no_collective_is_asked_of_it():
    alone = case("data=1", requires=("psum", "shard_map"))
    run = seen(output(ROWS, "", "data=1"), has_shard_map=True)
    assert verdicts(alone, run, ROWS) == ()
    found = verdicts(case(requires=("psum",)), seen(output(ROWS, "", "data=4")), ROWS)
    assert only(found) == ("API", "", "There is no psum in the program.")


def test_simulated_devices_have_no_budget_and_what_is_asked_for_must_be_there_too():
    large = case("data=64", requires=("psum",), is_simulated=True)
    whole = np.arange(64, dtype=np.float32)
    run = seen(output(whole, "data", "data=64"), calls=[call("psum")], peak_bytes=9)
    assert verdicts(large, run, whole, budget={"calls": 0, "peak_bytes": 1}) == ()
    lacks = seen(output(whole, "data", "data=64"))
    assert only(verdicts(large, lacks, whole)) == ("API", "", "There is no psum in the program.")


def test_a_cause_that_a_problem_names_itself_has_its_fix_beside_it():
    said = ("same_random_numbers", "Pieces 0 and 1 have the same mask.")
    run = seen(output(ROWS, "data", "data=4"))
    (verdict,) = verdicts(case(), run, ROWS, properties=lambda result: [said])
    assert verdict.cause == "same_random_numbers"
    assert verdict.fix.endswith("jax.random.fold_in(key, jax.lax.axis_index('data')).")


@pytest.mark.parametrize(
    ("variant", "is_checked", "words"),
    [
        ("beside", True, "JAX adds up the gradients of replicated arguments over 'data' by itself"),
        ("beside", False, "take each gradient's sum over 'data' exactly once"),
        ("beside_divided", True, "take each gradient's sum over 'data' exactly once"),
    ],
)
def test_a_gradient_that_jax_has_summed_is_told_from_one_that_it_has_not(
    variant, is_checked, words
):
    cause = Cause(name="gradient_scaled_by_n", places=("0",), part="w", variant=variant)
    evidence = grade(case(), seen(output(4 * ROWS, "", "data=4")), Right(expected=ROWS)).wrong[0]
    verdict = wrong_values.verdict(evidence, cause, is_checked)
    assert verdict.fix.startswith(("with check_vma=True", "take each"))
    assert words in verdict.fix
    assert ("scaled by 1/4" in verdict.what) == (variant == "beside_divided")


@pytest.mark.parametrize(
    ("got", "want", "told"),
    [
        (3, 3, None),
        (3.0, 3, None),
        (np.int32(3), 3, None),
        (np.asarray(True), True, None),
        ((1, 2), [1, 2], None),
        (float("nan"), float("nan"), None),
        (1e-7, 0.0, None),
        (4, 3, ("WA", "result is 4, want 3.")),
        (1, True, ("DTYPE", "result is 1, want True.")),
        ("a", 3, ("DTYPE", "result is 'a', want a number.")),
        (None, 3, ("DTYPE", "result is None, want a number.")),
        ([1, [2]], [1, 2], ("SHAPE", "result[1] has shape (1,), want ().")),
        ([1], [1, 2], ("SHAPE", "result is [1], want [1, 2].")),
        ({"a": 1}, {"b": 1}, ("SHAPE", "result lacks 'b' and has 'a', which was not asked for")),
        ([[1], [2, 3]], np.ones((2, 2)), ("SHAPE", "result is [[1], [2, 3]], want [[1 1] [1 1]].")),
        (slice(0, 2), slice(0, 3), ("WA", "result is slice(0, 2, None), want slice(0, 3, None).")),
        (2, slice(0, 3), ("SHAPE", "result is 2, want slice(0, 3, None).")),
    ],
)
def test_plain_values_are_compared_by_what_they_mean(got, want, told):
    found = [(verdict.code, verdict.what) for verdict in grade_value(case(), got, want)]
    if told is None:
        assert found == []
    else:
        ((code, what),) = found
        assert code == told[0]
        assert what.startswith(told[1])


def test_cases_are_drawn_from_seeds_of_their_own():
    part = case().part
    ladder = make_cases(part, 5, 2)
    assert len({each.seed for each in ladder}) == len(ladder)
    assert make_cases(part, 5, 2) == ladder
    assert not {each.seed for each in ladder} & {each.seed for each in make_cases(part, 6, 2)}
