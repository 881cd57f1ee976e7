"""Findings from runs: replicas before results, one finding per root cause, notes for the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardlab.checks.check_replicas import (
    differing_axes,
    find_differing_replicas,
    missing_reduction,
)
from shardlab.checks.compare_runs import check_runs, default_test_meshes, merge_findings
from shardlab.checks.mesh_dependence import compare_with_one_device, explain_by_repairs
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.simulator.repair import Repair
from shardlab.simulator.run_records import (
    CollectiveSite,
    MeshRun,
    MeshRuns,
    OutputLeaf,
    OutputLineage,
    ReplicaValues,
    RunFailure,
)

EPS = 1.2e-7
PLAIN = OutputLineage(eps=EPS)
BODY = SourceLocation("train.py", 7, "body")
ONE = (("data", 1),)
RIGHT = np.array([3.0, -1.0, 4.0, 8.0])


def replicas(values, axes=("data",), number=0):
    return ReplicaValues(
        output_index=number,
        n_outputs=1,
        body="body",
        source=BODY,
        mesh_axes=axes,
        values=np.asarray(values),
    )


def run(n, lineage=PLAIN, gradients=None, recorded=(), **outputs):
    def leaves(arrays):
        return {
            path: OutputLeaf(value=np.asarray(x), dtype="float32", noise=0.0, lineage=lineage)
            for path, x in arrays.items()
        }

    mesh = ONE if n == 1 else (("data", n),)
    return MeshRun(
        mesh=mesh,
        outputs=leaves(outputs),
        gradients=leaves(gradients or {}),
        copies=tuple(recorded),
    )


def runs(change, lineage=PLAIN, sizes=(2, 4), right=RIGHT):
    return MeshRuns(
        one=run(1, lineage, loss=right),
        many=tuple(run(n, lineage, loss=change(n)) for n in sizes),
        source=SourceLocation("train.py", 1, "f"),
    )


# ---------------------------------------------------------------------------- replicas that differ


@pytest.mark.parametrize(
    ("expected", "name"), [(7.0, "psum"), (7 / 3, "pmean"), (4.0, "pmax"), (1.0, "pmin"), (6.9, "")]
)
def test_the_reduction_that_is_missing_is_found_from_the_numbers(expected, name):
    assert missing_reduction(replicas([1.0, 2.0, 4.0]), ("data",), np.array(expected), EPS) == name


def test_replicas_differ_along_some_mesh_axes_only():
    values = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    mesh_runs = replicas(values, ("data", "model"))
    assert differing_axes(mesh_runs, EPS) == ("data",)
    assert missing_reduction(mesh_runs, ("data",), np.array(7.0), EPS) == "psum"
    assert differing_axes(replicas([1.0, 1.0 + 1e-7]), EPS) == ()
    assert differing_axes(replicas([np.nan, np.nan]), EPS) == ()


def test_a_finding_shows_the_values_by_device_and_what_they_add_up_to():
    mesh_runs = MeshRuns(
        one=run(1, recorded=[replicas(7.0, ())], total=7.0),
        many=(run(3, recorded=[replicas([1.0, 2.0, 4.0])], total=1.0),),
    )
    (finding,) = find_differing_replicas(mesh_runs)
    assert str(finding) == (
        "error [hazard.replicas_differ] Output total of 'body' differs between devices, but "
        "out_specs declare it replicated over 'data'. The values sum to the one-device value: a "
        "psum over 'data' is missing.\n"
        "  where: train.py:7 (body)\n"
        "    on data=3:\n"
        "      data=0: 1.\n"
        "      data=1: 2.\n"
        "      data=2: 4.\n"
        "    on one device: 7.\n"
        "  try:   return jax.lax.psum(value, 'data'), or shard it over 'data' in out_specs."
    )
    assert finding.cause == "missing_psum"


def test_a_reduction_must_hold_on_every_mesh():
    mesh_runs = MeshRuns(
        one=run(1, recorded=[replicas(7.0, ())], total=7.0),
        many=(
            run(2, recorded=[replicas([3.0, 4.0])], total=3.0),
            run(3, recorded=[replicas([1.0, 2.0, 5.0])], total=1.0),
        ),
    )
    (finding,) = find_differing_replicas(mesh_runs)
    assert finding.cause == ""


def test_differing_replicas_are_not_reported_as_mesh_dependence_too():
    mesh_runs = MeshRuns(
        one=run(1, recorded=[replicas(7.0, ())], total=7.0),
        many=(run(2, recorded=[replicas([3.0, 4.0])], total=3.0),),
    )
    assert [item.code for item in check_runs(mesh_runs).findings] == ["hazard.replicas_differ"]


def test_outputs_that_differ_for_one_reason_are_reported_together():
    """A forgotten pmean: the mean of the moments is right, that of the updated weights is not."""

    def recorded(n, number, values):
        axes = ("data",) if n > 1 else ()
        return ReplicaValues(
            output_index=number,
            n_outputs=4,
            body="body",
            source=BODY,
            mesh_axes=axes,
            values=np.asarray(values),
        )

    right = [7.5, 9.5, 2.0, 3.0]
    one = run(
        1, recorded=[recorded(1, i, x) for i, x in enumerate(right)],
        **dict(zip("wmvs", right, strict=True)),
    )  # fmt: skip
    values = [[1.0, 2.0], [9.0, 10.0], [0.5, 3.5], [1.5, 9.0]]
    many = run(
        2, recorded=[recorded(2, i, x) for i, x in enumerate(values)],
        **dict(zip("wmvs", [x[0] for x in values], strict=True)),
    )  # fmt: skip
    (finding,) = find_differing_replicas(MeshRuns(one=one, many=(many,)))
    assert finding.cause == "missing_pmean"
    assert finding.what.startswith("Output m of 'body' and 3 more outputs differ between devices")
    assert finding.details["outputs"] == ["m", "v", "w", "s"]
    assert finding.shows == (
        "on data=2:", "  data=0: 9.", "  data=1: 10.", "on one device: 9.5", "the others: v, w, s",
    )  # fmt: skip
    other = ReplicaValues(
        output_index=4,
        n_outputs=5,
        body="body",
        source=BODY,
        mesh_axes=("data",),
        values=np.array([3.0, 4.0]),
    )
    meant = ReplicaValues(
        output_index=4, n_outputs=5, body="body", source=BODY, mesh_axes=(), values=np.array(7.0)
    )
    both = MeshRuns(
        one=replace(one, copies=(*one.copies, meant)),
        many=(replace(many, copies=(*many.copies, other)),),
    )
    assert [item.cause for item in find_differing_replicas(both)] == [
        "missing_pmean",
        "missing_psum",
    ]


# ------------------------------------------------------------------------------ results that change


def test_one_finding_covers_all_meshes():
    (finding,) = compare_with_one_device(runs(lambda n: n * RIGHT)).findings
    assert finding.cause == "factor_of_n"
    assert finding.what == (
        "Output loss is n times the value on one device, where n is the size of 'data'."
    )
    assert [line.split(", ")[-1] for line in finding.shows[:2]] == ["x2", "x4"]
    assert finding.details["meshes"] == ["data=2", "data=4"]


@pytest.mark.parametrize(
    ("change", "lineage", "cause"),
    [
        (lambda n: RIGHT / n, PLAIN, "divided_by_n"),
        (lambda n: np.roll(RIGHT, 4 // n), PLAIN, "shards_permuted"),
        (lambda n: RIGHT + n - 1, PLAIN, "bias_n_times"),
        (
            lambda n: RIGHT + np.arange(4) % (4 // n) - np.arange(4),
            OutputLineage(eps=EPS, has_collectives=False),
            "only_shard_0",
        ),
        # A ring that forgets something is right on the first device too.
        (lambda n: RIGHT + np.arange(4) % (4 // n) - np.arange(4), PLAIN, ""),
        (
            lambda n: RIGHT + np.arange(4) % (4 // n) - np.arange(4),
            OutputLineage(eps=EPS, has_collectives=False, has_device_index=True),
            "",
        ),
        # A sum of quotients may be right, and something else wrong: only a run can tell.
        (lambda n: RIGHT + 0.1 * n * n, OutputLineage(eps=EPS, sums_ratios=(BODY,)), ""),
        (
            lambda n: RIGHT + 0.1 * n * n,
            OutputLineage(eps=EPS, random=frozenset({"same"}), repeats_random=("data",)),
            "same_random_numbers",
        ),
        # The same random numbers for the same data, as tensor parallel dropout needs them.
        (lambda n: RIGHT + 0.1 * n * n, OutputLineage(eps=EPS, random=frozenset({"same"})), ""),
        (lambda n: RIGHT + 0.1 * n * n, PLAIN, ""),
    ],
)
def test_each_cause_is_named(change, lineage, cause):
    (finding,) = compare_with_one_device(runs(change, lineage)).findings
    assert finding.cause == cause
    assert finding.fix


def test_an_unexplained_difference_follows_from_an_explained_one():
    one = run(1, loss=RIGHT, weights=RIGHT)
    many = [run(n, loss=n * RIGHT, weights=RIGHT - 0.1 * n * n) for n in (2, 4)]
    (finding,) = compare_with_one_device(MeshRuns(one=one, many=tuple(many))).findings
    assert finding.cause == "factor_of_n"
    assert finding.shows[-1] == "Output weights changes with it."


def test_gradients_are_compared_if_the_values_agree():
    one = run(1, gradients={"w": RIGHT, "b": RIGHT}, loss=RIGHT)
    many = [run(n, gradients={"w": n * RIGHT, "b": RIGHT}, loss=RIGHT) for n in (2, 4)]
    (finding,) = compare_with_one_device(MeshRuns(one=one, many=tuple(many))).findings
    assert finding.cause == "gradient_scaled_by_n"
    assert finding.what.startswith(
        "The gradient with respect to w is n times the gradient on one device"
    )
    wrong = [run(n, gradients={"w": n * RIGHT, "b": RIGHT}, loss=n * RIGHT) for n in (2, 4)]
    (finding,) = compare_with_one_device(MeshRuns(one=one, many=tuple(wrong))).findings
    assert finding.cause == "factor_of_n"


def test_a_gradient_that_the_program_computes_itself_of_a_right_loss():
    value, grad = PLAIN, OutputLineage(eps=EPS, is_gradient=True)

    def both(n, factor):
        leaves = {
            "loss": OutputLeaf(value=RIGHT, dtype="float32", noise=0.0, lineage=value),
            "grad": OutputLeaf(value=factor * RIGHT, dtype="float32", noise=0.0, lineage=grad),
        }
        return MeshRun(mesh=(("data", n),), outputs=leaves)

    (finding,) = compare_with_one_device(
        MeshRuns(one=both(1, 1), many=(both(2, 2), both(4, 4)))
    ).findings
    assert finding.cause == "gradient_scaled_by_n"
    assert finding.details["paths"] == ["grad"]


def test_an_update_with_too_large_a_gradient_is_not_a_bias():
    weights = np.array([0.5, 2.5, -2.0, 3.0])
    grad = OutputLineage(eps=EPS, is_gradient=True)
    mesh_runs = runs(lambda n: weights + n * (RIGHT - weights), grad)
    (finding,) = compare_with_one_device(replace(mesh_runs, arguments={"w": weights})).findings
    assert finding.cause == "gradient_scaled_by_n"
    assert finding.what.startswith("Output loss moves argument w n times as far as on one device")
    assert "pmean instead of psum" in finding.fix
    # Without the argument it could as well be a bias in the value, which changes the gradient.
    (finding,) = compare_with_one_device(mesh_runs).findings
    assert finding.cause == ""
    # Without a gradient it is a sum taken twice, with a bias added.
    mesh_runs = runs(lambda n: weights + n * (RIGHT - weights))
    (finding,) = compare_with_one_device(replace(mesh_runs, arguments={"w": weights})).findings
    assert finding.cause == "factor_of_n"
    assert "argument w plus n times what is added to it on one device" in finding.what


def test_a_gradient_explains_nothing_if_a_value_is_wrong_too():
    value, grad = PLAIN, OutputLineage(eps=EPS, is_gradient=True)

    def both(n):
        leaves = {
            "loss": OutputLeaf(value=RIGHT + n * n, dtype="float32", noise=0.0, lineage=value),
            "grad": OutputLeaf(value=n * RIGHT, dtype="float32", noise=0.0, lineage=grad),
        }
        return MeshRun(mesh=(("data", n),), outputs=leaves)

    (finding,) = compare_with_one_device(MeshRuns(one=both(1), many=(both(2), both(4)))).findings
    assert finding.cause == ""
    assert "Output grad changes with it." in finding.shows


def test_a_term_that_equals_no_argument_must_explain_every_value():
    one = run(1, logits=RIGHT, loss=RIGHT)
    many = [run(n, logits=RIGHT + n - 1, loss=RIGHT + n * n) for n in (2, 4)]
    (finding,) = compare_with_one_device(MeshRuns(one=one, many=tuple(many))).findings
    assert finding.cause == ""
    many = [run(n, logits=RIGHT + n - 1, loss=RIGHT) for n in (2, 4)]
    (finding,) = compare_with_one_device(MeshRuns(one=one, many=tuple(many))).findings
    assert finding.cause == "bias_n_times"


def test_an_unknown_cause_lists_the_collectives_from_the_output_back():
    sites = (CollectiveSite("psum", ("data",), BODY), CollectiveSite("ppermute", ("data",), BODY))
    mesh_runs = runs(lambda n: RIGHT + 0.1 * n * n, OutputLineage(eps=EPS, collectives=sites))
    (finding,) = compare_with_one_device(mesh_runs).findings
    assert finding.what.endswith("the cause is not known.")
    assert finding.shows[-3:] == (
        "collectives on the path, from the output back:",
        f"  psum over 'data' at {BODY}",
        f"  ppermute over 'data' at {BODY}",
    )


@pytest.mark.parametrize(
    ("kinds", "cause"),
    [(["divide"], "factor_of_n"), (["count_once", "count_once"], "bias_n_times"),
     (["offset"], "only_shard_0"), (["divide", "offset"], ""), ([], "")],
)  # fmt: skip
def test_repairs_name_a_cause_if_they_agree(kinds, cause):
    mesh_runs = runs(lambda n: RIGHT + 0.1 * n * n)
    comparison = compare_with_one_device(mesh_runs)
    repairs = [
        Repair(kind=kind, primitive="psum", mesh_axes=("data",), source=BODY) for kind in kinds
    ]
    (finding,) = explain_by_repairs(mesh_runs, repairs, comparison).findings
    assert finding.cause == cause
    assert (finding.where == BODY) == bool(cause)


@pytest.mark.parametrize(
    ("change", "lineage", "cause", "text"),
    [
        (
            lambda n: n * RIGHT, OutputLineage(eps=EPS, divided_by=(8,)), "factor_of_n",
            "the result is right on 8 devices only",
        ),
        (
            lambda n: RIGHT + 0.1 * n * n, OutputLineage(eps=EPS, has_collectives=False), "",
            "no collective is on the path to this output",
        ),
    ],
    ids=["constant", "alone"],
)  # fmt: skip
def test_what_is_known_besides_the_cause_is_in_the_fix(change, lineage, cause, text):
    (finding,) = compare_with_one_device(runs(change, lineage)).findings
    assert finding.cause == cause
    assert text in finding.fix


def test_values_are_printed_with_enough_digits_to_differ():
    small = RIGHT / 1000
    mesh_runs = runs(lambda n: small + np.eye(4)[2] * 1e-6 * n * n, right=small)
    (finding,) = compare_with_one_device(mesh_runs).findings
    assert finding.shows[0].endswith(
        "1 of 4 elements differ; the first, [2], is 0.004004, expected 0.004"
    )
    mesh_runs = runs(lambda n: np.array(1e-3 + 1e-6 * n * n), right=np.array(1e-3))
    (finding,) = compare_with_one_device(mesh_runs).findings
    assert [line.partition(": ")[2] for line in finding.shows] == ["0.001004", "0.001016", "0.001"]


def test_if_one_device_fails_the_smallest_mesh_is_the_reference():
    failure = RunFailure(kind="rejected", message="No.")
    two, four = run(2, loss=RIGHT), run(4, loss=RIGHT + 1)
    mesh_runs = check_runs(MeshRuns(one=two, many=(four,), one_device_failure=failure))
    (finding,) = mesh_runs.findings
    assert finding.what == (
        "Output loss differs from the result on data=2; the cause is not known."
    )
    assert "a device count seems to be hard-coded" in finding.fix
    assert finding.shows[-1].startswith("on data=2: ")
    assert not mesh_runs.is_unexplained  # more sizes of a program with a fixed size explain nothing
    (note,) = mesh_runs.notes
    assert note.startswith(
        "The program fails on one device: No. All runs were compared with data=2"
    )
    (note,) = check_runs(MeshRuns(one=two, many=(), one_device_failure=failure)).notes
    assert "NOTHING WAS COMPARED: it ran only on data=2." in note


# ----------------------------------------------------------------------------- intended differences


@pytest.mark.parametrize(
    ("change", "lineage", "text"),
    [
        (lambda n: np.arange(n), PLAIN, "its shape depends on the mesh ((2,), (4,))"),
        (
            lambda n: RIGHT + n * n,
            OutputLineage(eps=EPS, random=frozenset({"by_device"})),
            "differ by design",
        ),
        (
            lambda n: RIGHT + n,
            OutputLineage(has_arguments=False, eps=EPS),
            "and on no argument",
        ),
    ],
    ids=["shape", "random", "no argument"],
)
def test_what_differs_by_design_is_a_note(change, lineage, text):
    compared = compare_with_one_device(runs(change, lineage))
    assert compared.findings == ()
    (note,) = compared.notes
    assert text in note


@pytest.mark.parametrize(
    ("count", "has_cause"),
    [
        (lambda n: 48 // n, True),  # x.shape[0]
        (lambda n: 48 * 6 // n, True),  # x.size
        (lambda n: 96 // n, False),  # a number that is no size of an argument
        (lambda n: n, False),  # lax.axis_size
        (lambda n: 48 // n + 1, False),
    ],
    ids=["rows", "size", "another number", "axis size", "padded"],
)
def test_the_number_of_rows_of_one_device_is_a_finding(count, has_cause):
    constant = OutputLineage(has_arguments=False, has_collectives=False)
    mesh_runs = runs(lambda n: np.int32(count(n)), constant, right=np.int32(count(1)))
    compared = compare_with_one_device(replace(mesh_runs, arguments={"x": np.ones((48, 6))}))
    assert [finding.cause for finding in compared.findings] == ["divided_by_n"] * has_cause
    assert bool(compared.notes) != has_cause
    if has_cause:
        assert "counts the elements of its own shard" in compared.findings[0].what


def test_the_same_results_give_nothing():
    assert compare_with_one_device(runs(lambda n: RIGHT * (1 + 1e-7))).findings == ()
    odd = np.array([np.nan, np.inf, 1.0, 2.0])
    assert compare_with_one_device(runs(lambda n: odd, right=odd)).findings == ()


# -------------------------------------------------------------------------------- failed runs


def failed(n, kind, message="ValueError: no"):
    return MeshRun(mesh=(("data", n),), failure=RunFailure(kind=kind, message=message))


def test_indivisible_meshes_are_named_and_an_empty_comparison_stands_out():
    one = run(1, loss=RIGHT)
    some = check_runs(MeshRuns(one=one, many=(run(2, loss=RIGHT), failed(3, "indivisible"))))
    assert some.notes == ("Not run on data=3: a dimension is not divisible by its shard count.",)
    none = check_runs(MeshRuns(one=one, many=(failed(3, "indivisible"),)))
    assert none.notes[-1].startswith("NOTHING WAS COMPARED WITH ONE DEVICE")


def test_a_rejection_is_a_finding_on_a_requested_mesh():
    mesh_runs = MeshRuns(one=run(1, loss=RIGHT), many=(failed(3, "rejected"),))
    assert check_runs(mesh_runs).findings == ()
    (finding,) = check_runs(mesh_runs, are_requested=True).findings
    assert (finding.code, finding.severity) == ("jax.rejected", "error")
    assert "ValueError: no" in finding.what


def test_a_deadlock_has_the_line_of_its_collective():
    deadlock = RunFailure(
        kind="deadlock",
        message="Some devices never reach it.",
        where="psum at a.py:3 (body), under a.py:2",
        fix="no",
        location=SourceLocation("a.py", 3, "body"),
    )
    mesh_runs = MeshRuns(
        one=run(1, loss=RIGHT), many=(MeshRun(mesh=(("data", 2),), failure=deadlock),)
    )
    (finding,) = check_runs(mesh_runs).findings
    assert (finding.code, finding.where) == ("hazard.deadlock", SourceLocation("a.py", 3, "body"))


def test_an_error_takes_the_line_of_the_warning_that_explains_it():
    psum = SourceLocation("train.py", 9, "body")
    details = {"mesh_axes": ["data"]}
    warning = Finding(
        code="hazard.psum_of_replicated",
        severity="warning",
        what="Copies.",
        where=psum,
        details=details,
    )
    other = Finding(code="waste.replicated", severity="warning", what="Large.", where=psum)
    (error,) = compare_with_one_device(runs(lambda n: n * RIGHT)).findings
    finding, remaining = merge_findings([warning, other], [error])
    assert (finding.code, finding.where, remaining) == ("hazard.mesh_dependent", psum, other)
    elsewhere = Finding(
        code="hazard.psum_of_replicated",
        severity="warning",
        what="Copies.",
        where=psum,
        details={"mesh_axes": ["model"]},
    )
    assert len(merge_findings([elsewhere], [error])) == 2


def test_an_axis_order_that_some_versions_of_jax_reject_is_reported_once():
    failure = RunFailure(
        kind="rejected", message="Not in this order.", code="simulate.permutation_order"
    )
    mesh_runs = MeshRuns(
        one=run(1, loss=RIGHT), many=(MeshRun(mesh=(("data", 2),), failure=failure),)
    )
    compared = check_runs(mesh_runs, are_requested=True)
    assert [item.code for item in merge_findings([], compared.findings)] == ["jax.rejected"]
    order = Finding(code="hazard.ppermute_axis_order", severity="warning", what="Ignored.")
    assert merge_findings([order], compared.findings) == [order]


def test_three_axes_are_tested_one_by_one_and_together():
    sizes = [mesh.axis_sizes for mesh in default_test_meshes(("x", "y", "z"))]
    assert sizes == [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2), (1, 1, 3)]
