"""Grading without any process: right results, and the verdicts on wrong ones."""

from dataclasses import replace

import numpy as np
import pytest

from judge.handmade_runs import (
    grade_verdicts,
    make_call,
    make_case,
    make_run,
    replicated_output,
    sharded_output,
)
from shardlab.collectives.program_flow import ProgramFlow
from shardlab.judge.cases import make_cases
from shardlab.judge.grading import wrong_values
from shardlab.judge.grading.grade import ExpectedResult, grade_run
from shardlab.judge.grading.plain_values import grade_value
from shardlab.judge.grading.requirements import find_missing
from shardlab.judge.grading.wrong_values import Cause
from shardlab.sharding.spec import Spec

ROWS = np.arange(24, dtype=np.float32).reshape(8, 3)


def only_verdict(verdicts):
    (verdict,) = verdicts
    return verdict.code, verdict.cause, verdict.what


def test_a_run_with_the_expected_result_has_no_verdicts():
    run = make_run(sharded_output(ROWS, "data", "data=4"))
    assert grade_verdicts(make_case(), run, ROWS, specs=Spec("data")) == ()


@pytest.mark.parametrize(
    ("got", "sentence"),
    [
        (ROWS[:2], "expected (8, 3): out_specs may return only one of the 4 shards."),
        (np.tile(ROWS, (4, 1)), "out_specs may concatenate 4 replicas over 'data'."),
        (np.stack([ROWS] * 4), "is dimension 0 a stack over 'data'? Use tiled=True."),
        (ROWS[None], "dimension 0 of size 1 is too many."),
        (ROWS.T, "is it transposed?"),
        (ROWS.reshape(2, 12), "are shards of dimension 0 concatenated along dimension 1?"),
        (ROWS[:5], "result has shape (5, 3), expected (8, 3)."),
    ],
)
def test_a_wrong_shape_comes_with_a_guess_at_the_mistake(got, sentence):
    code, _, what = only_verdict(
        grade_verdicts(make_case(), make_run(sharded_output(got, "", "data=4")), ROWS)
    )
    assert code == "SHAPE"
    assert what.endswith(sentence)


def test_other_arrays_than_expected_are_named():
    run = make_run(sharded_output(ROWS, "", "data=4", "['w']"))
    _, _, what = only_verdict(grade_verdicts(make_case(), run, {"w": ROWS, "b": ROWS}))
    assert what == "The function returns result['w']; expected result['b'], result['w']."


@pytest.mark.parametrize(
    ("expected", "actual", "sentence"),
    [
        (Spec("data"), "", "result is replicated on every device; expected P('data')."),
        (Spec(), "data", "result is sharded as P('data'); expected P()."),
        (Spec("data"), "None,data", "result is sharded as P(None, 'data'); expected P('data')."),
    ],
)
def test_a_sharding_is_reported_as_its_spec(expected, actual, sentence):
    square = np.arange(64, dtype=np.float32).reshape(8, 8)
    verdicts = grade_verdicts(
        make_case(), make_run(sharded_output(square, actual, "data=4")), square, specs=expected
    )
    assert only_verdict(verdicts) == ("SHARD", "", sentence)


def test_the_order_of_mesh_axes_in_a_sharding_is_reported():
    mesh = "data=2,model=4"
    run = make_run(sharded_output(ROWS, "(model,data)", mesh))
    verdicts = grade_verdicts(make_case(mesh), run, ROWS, specs=Spec(("data", "model")))
    what = "result is sharded as P(('model', 'data')); expected P(('data', 'model'))."
    assert only_verdict(verdicts) == ("SHARD", "", what)


def test_replicas_are_compared_bit_for_bit_and_nan_equals_itself():
    nan = np.float32([1, np.nan])
    assert grade_verdicts(make_case(), make_run(replicated_output([nan] * 4, "data=4")), nan) == ()
    close = [np.float32(1), np.float32(1), np.float32(1), np.nextafter(np.float32(1), 2)]
    assert (
        only_verdict(
            grade_verdicts(make_case(), make_run(replicated_output(close, "data=4")), np.float32(1))
        )[0]
        == "REPLICAS"
    )


def test_replicas_that_differ_over_one_of_two_mesh_axes_name_it():
    mesh = "data=2,model=4"
    values = [np.float32(number) for number in (1, 1, 1, 1, 6, 6, 6, 6)]
    verdicts = grade_verdicts(
        make_case(mesh), make_run(replicated_output(values, mesh)), np.float32(7)
    )
    assert only_verdict(verdicts) == (
        "REPLICAS",
        "missing_psum",
        "Devices along 'data' hold 1, 6 for result, which add up to the expected 7: a psum is "
        "missing.",
    )


def test_a_first_device_that_is_right_is_no_missing_pmin():
    values = [np.float32([1, 2]) + device for device in range(4)]
    code, cause, what = only_verdict(
        grade_verdicts(make_case(), make_run(replicated_output(values, "data=4")), values[0])
    )
    assert (code, cause) == ("REPLICAS", "")
    assert (
        what
        == "Devices along 'data' must hold the same result[0]; they hold 1, 2, 3, 4. Expected 1."
    )


def test_a_wrong_value_without_a_cause_names_its_index_and_the_devices():
    wrong = ROWS.copy()
    wrong[2:4] += [0, 5, 0]
    verdicts = grade_verdicts(make_case(), make_run(sharded_output(wrong, "data", "data=4")), ROWS)
    what = "result[2, 1] is 12, expected 7; 2 of 24 elements differ, on device 1 of 4."
    assert only_verdict(verdicts) == ("WA", "", what)


@pytest.mark.parametrize(
    ("budget", "calls", "sentences"),
    [
        ({"psum": 1}, [make_call("psum")], []),
        ({"psum": 1}, [make_call("psum", count=3)], ["3 psum of 16 B; budget 1."]),
        (
            {"psum": 1},
            [make_call("psum", count=None)],
            ["A psum is in a loop whose length is not known before it runs."],
        ),
        ({"peak_bytes": 9}, [make_call("psum", count=None)], []),
        ({"psum": 1}, [make_call("psum", count=0)], []),
        ({"psum": 1}, [make_call("all_gather")], ["1 all_gather of 16 B; budget 0."]),
        ({"calls": 0}, [make_call("psum")], ["1 psum of 16 B; budget 0."]),
        ({"calls": 2}, [make_call("psum"), make_call("pmax")], []),
        (
            {"calls": 1},
            [make_call("psum"), make_call("pmax")],
            ["2 collectives; budget 1: 1 psum of 16 B, 1 pmax of 16 B."],
        ),
        (
            {"wire_bytes": 20},
            [make_call("psum")],
            ["24 B sent by each device; budget 20: 1 psum of 16 B."],
        ),
        (
            {"psum": 2, "payload_bytes": 16},
            [make_call("psum", count=2)],
            ["32 B passed to collectives by each device; budget 16: 2 psum of 16 B."],
        ),
        (
            {"psum": 0},
            [make_call("psum", is_inserted=True)],
            ["1 psum of 16 B inserted by the compiler; budget 0."],
        ),
        ({}, [make_call("psum", count=9)], []),
    ],
)
def test_communication_is_compared_with_the_budget(budget, calls, sentences):
    run = make_run(sharded_output(ROWS, "data", "data=4"), collectives=calls)
    verdicts = grade_verdicts(make_case(), run, ROWS, budget=budget)
    assert [verdict.what for verdict in verdicts] == sentences
    assert {verdict.code for verdict in verdicts} <= {"COMM"}
    assert all(verdict.fix for verdict in verdicts)


def test_the_fix_names_what_is_allowed():
    run = make_run(sharded_output(ROWS, "data", "data=4"), collectives=[make_call("all_gather")])
    (verdicts,) = grade_verdicts(make_case(), run, ROWS, budget={"psum": 1})
    assert verdicts.fix == "do without all_gather: the task allows psum."
    (verdicts,) = grade_verdicts(
        make_case(requires=("psum",)), make_run(sharded_output(ROWS, "", "data=4")), ROWS
    )
    assert verdicts.fix.startswith("call jax.lax.psum inside the shard_map")


def test_peak_memory_is_compared_with_the_budget():
    run = make_run(sharded_output(ROWS, "data", "data=4"), peak_bytes=4096)
    verdicts = grade_verdicts(make_case(), run, ROWS, budget={"peak_bytes": 2048})
    assert only_verdict(verdicts) == (
        "MEM",
        "",
        "A device stores 4,096 B at its peak; budget 2,048 B.",
    )


def test_no_collective_is_required_on_one_device():
    alone = make_case("data=1", requires=("psum", "shard_map"))
    run = make_run(sharded_output(ROWS, "", "data=1"))
    assert grade_verdicts(alone, run, ROWS) == ()
    verdicts = grade_verdicts(
        make_case(requires=("psum",)), make_run(sharded_output(ROWS, "", "data=4")), ROWS
    )
    assert only_verdict(verdicts) == ("API", "", "There is no psum in the program.")


def test_simulated_devices_have_no_budget_but_the_same_requirements():
    large = make_case("data=64", requires=("psum",), is_simulated=True)
    values = np.arange(64, dtype=np.float32)
    run = make_run(
        sharded_output(values, "data", "data=64"), collectives=[make_call("psum")], peak_bytes=9
    )
    assert grade_verdicts(large, run, values, budget={"calls": 0, "peak_bytes": 1}) == ()
    lacks = make_run(sharded_output(values, "data", "data=64"))
    assert only_verdict(grade_verdicts(large, lacks, values)) == (
        "API",
        "",
        "There is no psum in the program.",
    )


def test_a_cause_that_a_problem_names_itself_comes_with_its_fix():
    violation = ("same_random_numbers", "Shards 0 and 1 have the same mask.")
    run = make_run(sharded_output(ROWS, "data", "data=4"))
    (verdict,) = grade_verdicts(make_case(), run, ROWS, properties=lambda result: [violation])
    assert verdict.cause == "same_random_numbers"
    assert verdict.fix.endswith("jax.random.fold_in(key, jax.lax.axis_index('data')).")


@pytest.mark.parametrize(
    ("variant", "is_checked", "fix"),
    [
        ("beside", True, "JAX sums the gradients of replicated arguments over 'data' by itself"),
        ("beside", False, "sum each gradient over 'data' exactly once"),
        ("beside_divided", True, "sum each gradient over 'data' exactly once"),
    ],
)
def test_the_fix_of_a_gradient_depends_on_whether_jax_sums_it(variant, is_checked, fix):
    cause = Cause(name="gradient_scaled_by_n", axes=("0",), argument="w", variant=variant)
    run = make_run(sharded_output(4 * ROWS, "", "data=4"))
    evidence = grade_run(make_case(), run, ExpectedResult(value=ROWS)).wrong[0]
    verdict = wrong_values.value_verdict(evidence, cause, is_checked)
    assert verdict.fix.startswith(("with check_vma=True", "sum each"))
    assert fix in verdict.fix
    assert ("scaled by 1/4" in verdict.what) == (variant == "beside_divided")


@pytest.mark.parametrize(
    ("actual", "expected", "verdict"),
    [
        (3, 3, None),
        (3, 3.0, None),
        (np.int32(3), 3, None),
        ((np.int64(4), 2), (4, 2), None),
        ([4.0, 2.0], np.array([4, 2], np.float32), None),
        (3.0, 3, ("DTYPE", "result is 3.0, expected 3.")),
        (4.0, 3, ("WA", "result is 4, expected 3.")),
        ([4, 2], (4, 2), ("DTYPE", "result is [4, 2], expected (4, 2).")),
        (
            np.array([4, 2], np.int32),
            np.array([4, 2], np.float32),
            ("DTYPE", "result is an array of int32, expected floats."),
        ),
        (np.asarray(True), True, None),
        ((1, 2), [1, 2], None),
        (float("nan"), float("nan"), None),
        (1e-7, 0.0, None),
        (4, 3, ("WA", "result is 4, expected 3.")),
        (1, True, ("DTYPE", "result is 1, expected True.")),
        ("a", 3, ("DTYPE", "result is 'a', expected a number.")),
        (None, 3, ("DTYPE", "result is None, expected a number.")),
        ([1, [2]], [1, 2], ("SHAPE", "result[1] has shape (1,), expected ().")),
        ([1], [1, 2], ("SHAPE", "result is [1], expected [1, 2].")),
        (
            {"a": 1},
            {"b": 1},
            ("SHAPE", "result lacks 'b' and has the unexpected 'a'; expected keys ['b']."),
        ),
        (
            [[1], [2, 3]],
            np.ones((2, 2)),
            ("SHAPE", "result is [[1], [2, 3]], expected [[1 1] [1 1]]."),
        ),
        (
            slice(0, 2),
            slice(0, 3),
            ("WA", "result is slice(0, 2, None), expected slice(0, 3, None)."),
        ),
        (2, slice(0, 3), ("SHAPE", "result is 2, expected slice(0, 3, None).")),
    ],
)
def test_plain_values_are_compared_by_value(actual, expected, verdict):
    verdicts = [(v.code, v.what) for v in grade_value(make_case(), actual, expected)]
    if verdict is None:
        assert verdicts == []
    else:
        ((code, what),) = verdicts
        assert code == verdict[0]
        assert what.startswith(verdict[1])


def test_cases_are_drawn_from_seeds_of_their_own():
    part = make_case().part
    cases = make_cases(part, 5, 2)
    assert len({case.seed for case in cases}) == len(cases)
    assert make_cases(part, 5, 2) == cases
    assert not {case.seed for case in cases} & {case.seed for case in make_cases(part, 6, 2)}


def test_the_meshes_that_a_part_lists_are_drawn_where_they_are_renamed_or_permuted():
    texts = ("data=1", "rows=4", "data=2,model=4", "data=4 permuted")
    part = replace(make_case().part, axes=(), meshes=texts)
    drawn = [make_cases(part, seed, 2) for seed in range(40)]
    assert {(str(case[0].mesh), str(case[2].mesh)) for case in drawn} == {texts[::2]}
    assert len({case[1].mesh.axis_names for case in drawn}) > 30
    assert {case[3].mesh.axis_names[0] for case in drawn} == {"data"}
    assert len({case[3].mesh.device_ids for case in drawn}) > 20


@pytest.mark.parametrize("axes", [("data",), ("data", "model")])
def test_hidden_cases_draw_axis_names_sizes_and_devices_of_two_meshes(axes):
    part = replace(make_case().part, axes=axes, meshes=())
    drawn = [make_cases(part, seed, 2)[7:9] for seed in range(40)]
    examples = make_cases(part, 1, 1)
    assert [case.mesh for case in examples] == [case.mesh for case in make_cases(part, 2, 1)]
    renamed = [case.mesh for case, _ in drawn]
    assert len({mesh.axis_names for mesh in renamed}) > 30
    assert {mesh.axis_sizes[0] for mesh in renamed} >= {2, 3, 4}
    assert not any(set(mesh.axis_names) & {"data", "model", "rows"} for mesh in renamed)
    permuted = [case.mesh for _, case in drawn]
    assert all(mesh.axis_names[: len(axes)] == axes for mesh in permuted)
    assert all(sorted(mesh.device_ids) != list(mesh.device_ids) for mesh in permuted)
    assert any(0 not in mesh.device_ids for mesh in permuted)
    for mesh in (*renamed, *permuted):
        assert 3 <= mesh.n_devices <= 8


@pytest.mark.parametrize(
    ("budget", "flow", "codes"),
    [
        ({"body_elements": 4}, ProgramFlow(body_elements=4), []),
        ({"body_elements": 4}, ProgramFlow(body_elements=5), ["MEM"]),
        ({"matmul_elements": 6}, ProgramFlow(matmul_elements=6), []),
        ({"matmul_elements": 6}, ProgramFlow(matmul_elements=12), ["API"]),
        # Without a matrix product, the model was not applied.
        ({"matmul_elements": 6}, ProgramFlow(), ["API"]),
    ],
)
def test_arrays_larger_than_one_part_exceed_the_budget(budget, flow, codes):
    run = make_run(sharded_output(ROWS, "data", "data=4"), flow=flow)
    verdicts = grade_verdicts(make_case(), run, ROWS, budget=budget)
    assert [verdict.code for verdict in verdicts] == codes


@pytest.mark.parametrize(("names", "is_missing"), [(["data"], False), (["rows"], True)])
def test_the_axes_of_a_mesh_that_the_submission_makes(names, is_missing):
    run = make_run(flow=ProgramFlow(mesh_axes=tuple(names)))
    assert bool(find_missing(["mesh_axes"], run, 1, ["data"])) == is_missing
