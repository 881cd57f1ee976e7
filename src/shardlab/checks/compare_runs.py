"""Findings from runs on several meshes: replicas first, then results, each root cause once.

Without meshes of the user's, a program runs on small ones of different sizes:

>>> [mesh.axis_sizes for mesh in default_test_meshes(("data",))]
[(2,), (3,), (4,), (8,)]
>>> [mesh.axis_sizes for mesh in default_test_meshes(("data", "model"))]
[(2, 1), (1, 2), (2, 4), (4, 2), (3, 1), (1, 3)]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardlab.checks.check_codes import make_finding
from shardlab.checks.check_replicas import find_differing_replicas
from shardlab.checks.mesh_dependence import compare_with_one_device
from shardlab.checks.run_comparison import RunComparison
from shardlab.findings.finding import Finding
from shardlab.sharding.mesh import Mesh
from shardlab.simulator.run_records import MeshRun, MeshRuns, RunFailure

# Cause of an error -> the warning that names the line of the same mistake.
_WARNING_OF_CAUSE = {
    "factor_of_n": "hazard.psum_of_replicated",
    "bias_n_times": "hazard.psum_of_replicated",
    "gradient_scaled_by_n": "hazard.psum_of_replicated",
    "shards_permuted": "hazard.ppermute_axis_order",
}
# Causes for which the fix of the warning is better, because it knows the line.
_WARNING_HAS_FIX = ("factor_of_n", "bias_n_times")


def check_runs(runs: MeshRuns, *, are_requested: bool = False) -> RunComparison:
    """Return what is wrong with a program by its results, and what could not be compared.

    Replicas that differ make the results differ too, so results are then not compared. If JAX
    rejects the program on a mesh, that is a finding if the user asked for the mesh
    (`are_requested`), and a note if it is a default test mesh.
    """
    deadlocks = [
        _deadlock_finding(run) for run in (runs.one, *runs.many) if _failure_kind(run) == "deadlock"
    ]
    rejections = [
        _rejection_finding(run)
        for run in runs.many
        if are_requested and _failure_kind(run) == "rejected"
    ]
    notes = (*runs.notes, *_failure_notes(runs, are_requested), *_run_notes(runs))
    # Without a reference nothing can be compared, and after a deadlock no results are complete.
    if deadlocks or runs.one.failure:
        return RunComparison((*deadlocks[:1], *rejections[:1]), notes)
    replica_findings = find_differing_replicas(runs)
    if replica_findings:
        return RunComparison((*rejections, *replica_findings), notes)
    comparison = compare_with_one_device(runs)
    findings = (*rejections, *comparison.findings)
    return RunComparison(
        findings, (*notes, *comparison.notes), comparison.has_own_draws, comparison.notes
    )


def merge_findings(
    static_findings: Iterable[Finding], run_findings: Sequence[Finding]
) -> list[Finding]:
    """Return all findings; an error takes over the line of the warning that explains it."""
    warnings = list(static_findings)
    errors = []
    for error in run_findings:
        if any(_is_same_rejection(warning, error) for warning in warnings):
            continue
        # The run proves that the values are wrong; the trace knows the line. Together one finding.
        code = _WARNING_OF_CAUSE.get(error.cause)
        warning = next((w for w in warnings if w.code == code and _share_axes(w, error)), None)
        if warning is not None and error.code == "hazard.mesh_dependent":
            warnings.remove(warning)
            lines = (*error.shows, f"{warning.where}: {warning.what}")
            fix = warning.fix if error.cause in _WARNING_HAS_FIX else error.fix
            error = replace(error, where=warning.where or error.where, shows=lines, fix=fix)
        errors.append(error)
    return [*errors, *warnings]


def _is_same_rejection(warning: Finding, error: Finding) -> bool:
    """Return whether both are about a ppermute order that only some versions of JAX reject."""
    is_order = error.details.get("error") == "simulate.permutation_order"
    return is_order and warning.code == "hazard.ppermute_axis_order"


def _share_axes(warning: Finding, error: Finding) -> bool:
    axes = warning.details.get("mesh_axes")
    return axes is None or bool(set(axes) & set(error.details["mesh_axes"]))


# ---------------------------------------------------------------------------- runs that failed


def _failure_kind(run: MeshRun) -> str:
    return run.failure.kind if run.failure else ""


def _deadlock_finding(run: MeshRun) -> Finding:
    assert run.failure is not None
    return make_finding(
        "hazard.deadlock",
        run.failure.message,
        run.failure.location,
        run.failure.fix,
        shows=(f"on {run.mesh_text}: {run.failure.where}",),
    )


def _rejection_finding(run: MeshRun) -> Finding:
    assert run.failure is not None
    return make_finding(
        "jax.rejected",
        f"JAX rejects the program on mesh {run.mesh_text}: {run.failure.message}",
        run.failure.location,
        run.failure.fix
        or "use a mesh that the program is written for, or derive its sizes from the mesh.",
        details={"error": run.failure.code},
    )


def _failure_notes(runs: MeshRuns, are_requested: bool) -> tuple[str, ...]:
    if runs.one.failure is not None and _failure_kind(runs.one) != "deadlock":
        return (
            "NOTHING WAS COMPARED: the program fails on one device, which is the reference: "
            f"{runs.one.failure.message}",
        )
    failed = [run for run in runs.many if run.failure and _failure_kind(run) != "deadlock"]
    notes = [
        _failure_note(run)
        for run in failed
        if not (are_requested and _failure_kind(run) == "rejected")
    ]
    if runs.one_device_failure is not None:
        advice = "Pass several meshes."
        if runs.one_device_failure.kind == "partly_used":
            advice = "Pass a function that computes what is right: reference=."
        consequence = (
            f"All runs were compared with {runs.reference}, the smallest mesh on which it runs."
            if runs.compared_on
            else f"NOTHING WAS COMPARED: it ran only on {runs.reference}. {advice}"
        )
        notes.insert(0, f"{_one_device_text(runs.one_device_failure)} {consequence}")
    elif runs.many and len(failed) == len(runs.many):
        notes.append(
            "NOTHING WAS COMPARED WITH ONE DEVICE: the program ran on no other mesh. Pass meshes "
            "that fit it (meshes=...), or arrays whose dimensions are divisible by 2, 3, 4 and 8."
        )
    return tuple(notes)


def _one_device_text(failure: RunFailure) -> str:
    if failure.kind == "partly_used":
        return f"The number of devices is part of what the program computes: {failure.message}"
    return f"The program fails on one device: {failure.message}"


def _failure_note(run: MeshRun) -> str:
    assert run.failure is not None
    if run.failure.kind == "partly_used":
        return f"Not compared on {run.mesh_text}: {run.failure.message}"
    if run.failure.kind == "indivisible":
        return f"Not run on {run.mesh_text}: a dimension is not divisible by its shard count."
    return f"Not run on {run.mesh_text}: {run.failure.message}"


def _run_notes(runs: MeshRuns) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for run in (runs.one, *runs.many) for note in run.notes))


# ---------------------------------------------------------------------------------- test meshes

# 3 is there because a program that only works on powers of two is common, and 2 and 4 hide it.
_TEST_SIZES_1D = ((2,), (3,), (4,), (8,))
_TEST_SIZES_2D = ((2, 1), (1, 2), (2, 4), (4, 2), (3, 1), (1, 3))


def default_test_meshes(axis_names: Sequence[str]) -> list[Mesh]:
    """Return meshes with these axis names, in addition to one device.

    Some have one axis larger than 1, so that a difference can be attributed to it; others have
    several.
    """
    names = tuple(axis_names)
    n_axes = len(names)
    if n_axes == 1:
        rows: list[tuple[int, ...]] = list(_TEST_SIZES_1D)
    elif n_axes == 2:
        rows = list(_TEST_SIZES_2D)
    else:
        rows = [tuple(2 if i == j else 1 for j in range(n_axes)) for i in range(n_axes)]
        # All axes at once, for causes that need two (swapped axes), and one odd size.
        rows += [(2,) * n_axes, (1,) * (n_axes - 1) + (3,)]
    return [Mesh(list(zip(names, row, strict=True))) for row in rows]
