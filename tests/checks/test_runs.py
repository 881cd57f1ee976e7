"""What runs show: copies before results, one finding for one root cause, notes for the rest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardlab.checks.compare_runs import check_runs, default_test_meshes, merge_findings
from shardlab.checks.mesh_dependence import compare_with_one_device
from shardlab.checks.check_replicas import differing_axes, differing_replicas, missing_reduction
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.simulator.run_records import (
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


def copies(values, axes=("data",), number=0):
    return ReplicaValues(
        number=number, of=1, body="body", source=BODY, mesh_axes=axes, values=np.asarray(values)
    )


def run(n, lineage=PLAIN, gradients=None, written=(), **outputs):
    def leaves(arrays):
        return {
            path: OutputLeaf(value=np.asarray(x), dtype="float32", noise=0.0, lineage=lineage)
            for path, x in arrays.items()
        }

    mesh = ONE if n == 1 else (("data", n),)
    return MeshRun(
        mesh=mesh, outputs=leaves(outputs), gradients=leaves(gradients or {}), copies=tuple(written)
    )


def runs(change, lineage=PLAIN, sizes=(2, 4), right=RIGHT):
    return MeshRuns(
        one=run(1, lineage, loss=right),
        many=tuple(run(n, lineage, loss=change(n)) for n in sizes),
        source=SourceLocation("train.py", 1, "f"),
    )


# ------------------------------------------------------------------------------ copies that differ


@pytest.mark.parametrize(
    ("meant", "name"), [(7.0, "psum"), (7 / 3, "pmean"), (4.0, "pmax"), (1.0, "pmin"), (6.9, "")]
)
def test_the_reduction_that_is_missing_is_told_from_the_numbers(meant, name):
    assert missing_reduction(copies([1.0, 2.0, 4.0]), ("data",), np.array(meant), EPS) == name


def test_copies_differ_along_some_axes_only():
    values = np.array([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    seen = copies(values, ("data", "model"))
    assert differing_axes(seen, EPS) == ("data",)
    assert missing_reduction(seen, ("data",), np.array(7.0), EPS) == "psum"
    assert differing_axes(copies([1.0, 1.0 + 1e-7]), EPS) == ()
    assert differing_axes(copies([np.nan, np.nan]), EPS) == ()


def test_a_finding_shows_the_values_by_device_and_what_they_add_up_to():
    seen = MeshRuns(
        one=run(1, written=[copies(7.0, ())], total=7.0),
        many=(run(3, written=[copies([1.0, 2.0, 4.0])], total=1.0),),
    )
    (found,) = differing_replicas(seen)
    assert str(found) == (
        "error [hazard.replicas_differ] Output total of 'body', declared replicated over 'data', "
        "differs between devices. The copies add up to the one-device value: a psum over 'data' is "
        "missing.\n"
        "  where: train.py:7 (body)\n"
        "    on data=3:\n"
        "      data=0: 1.\n"
        "      data=1: 2.\n"
        "      data=2: 4.\n"
        "    on one device: 7.\n"
        "  try:   return jax.lax.psum(value, 'data'), or shard it over 'data' in out_specs."
    )
    assert found.cause == "missing_psum"


def test_a_reduction_must_hold_on_every_mesh():
    seen = MeshRuns(
        one=run(1, written=[copies(7.0, ())], total=7.0),
        many=(
            run(2, written=[copies([3.0, 4.0])], total=3.0),
            run(3, written=[copies([1.0, 2.0, 5.0])], total=1.0),
        ),
    )
    (found,) = differing_replicas(seen)
    assert found.cause == ""


def test_differing_copies_are_told_once_and_not_as_mesh_dependence_too():
    seen = MeshRuns(
        one=run(1, written=[copies(7.0, ())], total=7.0),
        many=(run(2, written=[copies([3.0, 4.0])], total=3.0),),
    )
    assert [found.code for found in check_runs(seen).findings] == ["hazard.replicas_differ"]


def test_outputs_that_differ_for_one_reason_are_told_together():
    """A forgotten pmean: moments average to what was meant, weights moved by them do not."""

    def written(n, number, values):
        axes = ("data",) if n > 1 else ()
        return ReplicaValues(
            number=number, of=4, body="body", source=BODY, mesh_axes=axes, values=np.asarray(values)
        )

    right = [7.5, 9.5, 2.0, 3.0]
    one = run(
        1, written=[written(1, i, x) for i, x in enumerate(right)],
        **dict(zip("wmvs", right, strict=True)),
    )  # fmt: skip
    copies = [[1.0, 2.0], [9.0, 10.0], [0.5, 3.5], [1.5, 9.0]]
    many = run(
        2, written=[written(2, i, x) for i, x in enumerate(copies)],
        **dict(zip("wmvs", [x[0] for x in copies], strict=True)),
    )  # fmt: skip
    (found,) = differing_replicas(MeshRuns(one=one, many=(many,)))
    assert found.cause == "missing_pmean"
    assert found.what.startswith("Output m of 'body' and 3 more outputs, declared replicated over")
    assert found.details["outputs"] == ["m", "v", "w", "s"]
    assert found.shows == (
        "on data=2:", "  data=0: 9.", "  data=1: 10.", "on one device: 9.5", "the others: v, w, s",
    )  # fmt: skip
    other = ReplicaValues(
        number=4, of=5, body="body", source=BODY, mesh_axes=("data",), values=np.array([3.0, 4.0])
    )
    meant = ReplicaValues(
        number=4, of=5, body="body", source=BODY, mesh_axes=(), values=np.array(7.0)
    )
    both = MeshRuns(
        one=replace(one, copies=(*one.copies, meant)),
        many=(replace(many, copies=(*many.copies, other)),),
    )
    assert [each.cause for each in differing_replicas(both)] == ["missing_pmean", "missing_psum"]


# ------------------------------------------------------------------------------ results that change


def test_one_finding_tells_of_all_meshes():
    (found,) = compare_with_one_device(runs(lambda n: n * RIGHT)).findings
    assert found.cause == "factor_of_n"
    assert found.what == (
        "Output loss is n times the value on one device, n being the size of 'data'."
    )
    assert [line.split(", ")[-1] for line in found.shows[:2]] == ["x2", "x4"]
    assert found.details["meshes"] == ["data=2", "data=4"]


@pytest.mark.parametrize(
    ("change", "lineage", "cause"),
    [
        (lambda n: RIGHT / n, PLAIN, "divided_by_n"),
        (lambda n: np.roll(RIGHT, 4 // n), PLAIN, "shards_permuted"),
        (lambda n: RIGHT + n - 1, PLAIN, "bias_n_times"),
        (lambda n: RIGHT + np.arange(4) % (4 // n) - np.arange(4), PLAIN, "only_shard_0"),
        (
            lambda n: RIGHT + 0.1 * n * n,
            OutputLineage(eps=EPS, sums_ratios=(BODY,)),
            "mean_of_means",
        ),
        (
            lambda n: RIGHT + 0.1 * n * n,
            OutputLineage(eps=EPS, random=frozenset({"same"})),
            "same_random_numbers",
        ),
        (lambda n: RIGHT + 0.1 * n * n, PLAIN, ""),
    ],
)
def test_each_cause_is_named(change, lineage, cause):
    (found,) = compare_with_one_device(runs(change, lineage)).findings
    assert found.cause == cause
    assert found.fix


def test_what_has_no_name_follows_from_what_has():
    one = run(1, loss=RIGHT, weights=RIGHT)
    many = [run(n, loss=n * RIGHT, weights=RIGHT - 0.1 * n * n) for n in (2, 4)]
    (found,) = compare_with_one_device(MeshRuns(one=one, many=tuple(many))).findings
    assert found.cause == "factor_of_n"
    assert found.shows[-1] == "Output weights changes with it."


def test_gradients_are_compared_where_the_values_agree():
    one = run(1, gradients={"w": RIGHT, "b": RIGHT}, loss=RIGHT)
    many = [run(n, gradients={"w": n * RIGHT, "b": RIGHT}, loss=RIGHT) for n in (2, 4)]
    (found,) = compare_with_one_device(MeshRuns(one=one, many=tuple(many))).findings
    assert found.cause == "gradient_scaled_by_n"
    assert found.what.startswith("The gradient by w is n times that on one device")
    wrong = [run(n, gradients={"w": n * RIGHT, "b": RIGHT}, loss=n * RIGHT) for n in (2, 4)]
    (found,) = compare_with_one_device(MeshRuns(one=one, many=tuple(wrong))).findings
    assert found.cause == "factor_of_n"


def test_a_gradient_that_the_program_takes_itself_of_a_right_loss():
    value, grad = PLAIN, OutputLineage(eps=EPS, is_gradient=True)

    def both(n, factor):
        leaves = {
            "loss": OutputLeaf(value=RIGHT, dtype="float32", noise=0.0, lineage=value),
            "grad": OutputLeaf(value=factor * RIGHT, dtype="float32", noise=0.0, lineage=grad),
        }
        return MeshRun(mesh=(("data", n),), outputs=leaves)

    (found,) = compare_with_one_device(
        MeshRuns(one=both(1, 1), many=(both(2, 2), both(4, 4)))
    ).findings
    assert found.cause == "gradient_scaled_by_n"
    assert found.details["paths"] == ["grad"]


def test_an_update_by_too_large_a_gradient_is_not_called_a_bias():
    weights = np.array([0.5, 2.5, -2.0, 3.0])
    grad = OutputLineage(eps=EPS, is_gradient=True)
    seen = runs(lambda n: weights + n * (RIGHT - weights), grad)
    (found,) = compare_with_one_device(replace(seen, arguments={"w": weights})).findings
    assert found.cause == "gradient_scaled_by_n"
    assert found.what.startswith("Output loss moves argument w n times as far as on one device")
    assert "pmean in the place of psum" in found.fix
    # The argument is not there, but the gradient is.
    (found,) = compare_with_one_device(seen).findings
    assert found.cause == "gradient_scaled_by_n"
    # Without a gradient it is a sum taken twice, with a bias added.
    seen = runs(lambda n: weights + n * (RIGHT - weights))
    (found,) = compare_with_one_device(replace(seen, arguments={"w": weights})).findings
    assert found.cause == "factor_of_n"
    assert "argument w and n times what one device adds to it" in found.what


@pytest.mark.parametrize(
    ("change", "lineage", "cause", "words"),
    [
        (
            lambda n: RIGHT * (n + 0.1), OutputLineage(eps=EPS, sums_ratios=(BODY,)), "factor_of_n",
            "sum first and divide last",
        ),
        (
            lambda n: n * RIGHT, OutputLineage(eps=EPS, divided_by=(8,)), "factor_of_n",
            "the result is right on 8 alone",
        ),
        (
            lambda n: RIGHT + 0.1 * n * n, OutputLineage(eps=EPS, has_collectives=False), "",
            "no collective stands on the way to this output",
        ),
    ],
    ids=["sum of means", "written", "alone"],
)  # fmt: skip
def test_what_is_known_besides_the_cause_is_in_the_fix(change, lineage, cause, words):
    (found,) = compare_with_one_device(runs(change, lineage)).findings
    assert found.cause == cause
    assert words in found.fix


def test_lines_that_are_shown_differ_where_values_do():
    small = RIGHT / 1000
    seen = runs(lambda n: small + np.eye(4)[2] * 1e-6 * n * n, right=small)
    (found,) = compare_with_one_device(seen).findings
    assert found.shows[0].endswith(
        "1 of 4 elements differ; the first, [2], is 0.004004 and not 0.004"
    )
    seen = runs(lambda n: np.array(1e-3 + 1e-6 * n * n), right=np.array(1e-3))
    (found,) = compare_with_one_device(seen).findings
    assert [line.partition(": ")[2] for line in found.shows] == ["0.001004", "0.001016", "0.001"]


def test_where_one_device_fails_the_smallest_mesh_is_compared_with():
    failure = RunFailure(kind="refused", words="No.")
    two, four = run(2, loss=RIGHT), run(4, loss=RIGHT + 1)
    seen = check_runs(MeshRuns(one=two, many=(four,), not_one=failure))
    (found,) = seen.findings
    assert found.what == "Output loss is not what data=2 computes."
    assert "a number of devices seems to be written into the program" in found.fix
    assert found.shows[-1].startswith("on data=2: ")
    assert not seen.is_unexplained  # further sizes of a program that has one size tell nothing
    (note,) = seen.notes
    assert note.startswith("On one device the program fails: No. All else was compared with data=2")
    (note,) = check_runs(MeshRuns(one=two, many=(), not_one=failure)).notes
    assert "NOTHING WAS COMPARED: it ran on data=2 alone." in note


# --------------------------------------------------------------------------------- what is no error


@pytest.mark.parametrize(
    ("change", "lineage", "words"),
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
            "depends on no argument",
        ),
    ],
    ids=["shape", "random", "no argument"],
)
def test_what_differs_by_design_is_a_note(change, lineage, words):
    compared = compare_with_one_device(runs(change, lineage))
    assert compared.findings == ()
    (note,) = compared.notes
    assert words in note


def test_the_same_results_give_nothing():
    assert compare_with_one_device(runs(lambda n: RIGHT * (1 + 1e-7))).findings == ()
    odd = np.array([np.nan, np.inf, 1.0, 2.0])
    assert compare_with_one_device(runs(lambda n: odd, right=odd)).findings == ()


# -------------------------------------------------------------------------------- what did not run


def failed(n, kind, words="ValueError: no"):
    return MeshRun(mesh=(("data", n),), failure=RunFailure(kind=kind, words=words))


def test_meshes_that_do_not_divide_are_named_and_an_empty_comparison_is_loud():
    one = run(1, loss=RIGHT)
    some = check_runs(MeshRuns(one=one, many=(run(2, loss=RIGHT), failed(3, "indivisible"))))
    assert some.notes == ("Not run on data=3, which does not divide its arrays evenly.",)
    none = check_runs(MeshRuns(one=one, many=(failed(3, "indivisible"),)))
    assert none.notes[-1].startswith("NOTHING WAS COMPARED WITH ONE DEVICE")


def test_a_refusal_is_a_finding_on_a_mesh_that_was_asked_for():
    seen = MeshRuns(one=run(1, loss=RIGHT), many=(failed(3, "refused"),))
    assert check_runs(seen).findings == ()
    (found,) = check_runs(seen, are_given=True).findings
    assert (found.code, found.severity) == ("jax.rejected", "error")
    assert "ValueError: no" in found.what


def test_a_deadlock_is_told_with_its_place():
    stuck = RunFailure(
        kind="deadlock",
        words="Devices part ways.",
        where="psum at a.py:3 (body), under a.py:2",
        fix="no",
    )
    seen = MeshRuns(one=run(1, loss=RIGHT), many=(MeshRun(mesh=(("data", 2),), failure=stuck),))
    (found,) = check_runs(seen).findings
    assert (found.code, found.where) == ("hazard.deadlock", SourceLocation("a.py", 3, "body"))


def test_a_warning_gives_its_line_to_the_error_that_it_explains():
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
    found, kept = merge_findings([warning, other], [error])
    assert (found.code, found.where, kept) == ("hazard.mesh_dependent", psum, other)
    elsewhere = Finding(
        code="hazard.psum_of_replicated",
        severity="warning",
        what="Copies.",
        where=psum,
        details={"mesh_axes": ["model"]},
    )
    assert len(merge_findings([elsewhere], [error])) == 2


def test_an_order_that_some_versions_of_jax_refuse_is_told_once():
    failure = RunFailure(
        kind="refused", words="Not in this order.", code="simulate.permutation_order"
    )
    seen = MeshRuns(one=run(1, loss=RIGHT), many=(MeshRun(mesh=(("data", 2),), failure=failure),))
    compared = check_runs(seen, are_given=True)
    assert [found.code for found in merge_findings([], compared.findings)] == ["jax.rejected"]
    order = Finding(code="hazard.ppermute_axis_order", severity="warning", what="Ignored.")
    assert merge_findings([order], compared.findings) == [order]


def test_a_mesh_of_three_axes_is_tried_along_each_and_along_all():
    sizes = [mesh.axis_sizes for mesh in default_test_meshes(("x", "y", "z"))]
    assert sizes == [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2), (1, 1, 3)]
