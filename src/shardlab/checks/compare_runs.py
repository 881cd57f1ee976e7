"""What runs on several meshes show: copies first, then results, each root cause once.

On which meshes a program is tried when nobody says: small ones, of different sizes.

>>> [mesh.axis_sizes for mesh in default_test_meshes(("data",))]
[(2,), (3,), (4,), (8,)]
>>> [mesh.axis_sizes for mesh in default_test_meshes(("data", "model"))]
[(2, 1), (1, 2), (2, 4), (4, 2), (3, 1), (1, 3)]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from shardlab.checks.check_codes import finding
from shardlab.checks.mesh_dependence import RunComparison, compare_with_one_device
from shardlab.checks.check_replicas import differing_replicas
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.sharding.mesh import Mesh
from shardlab.simulator.run_records import MeshRun, MeshRuns

# A warning that says at which line the cause of a difference lies.
_EXPLAINED_BY = {
    "factor_of_n": "hazard.psum_of_replicated",
    "bias_n_times": "hazard.psum_of_replicated",
    "gradient_scaled_by_n": "hazard.psum_of_replicated",
    "shards_permuted": "hazard.ppermute_axis_order",
}
# Causes for which the warning knows better what to do, since it knows the line.
_MENDED_ALIKE = ("factor_of_n", "bias_n_times")


def check_runs(runs: MeshRuns, *, are_given: bool = False) -> RunComparison:
    """Return what is wrong with a program by what it computed, and what could not be compared.

    Copies that differ make the results differ too, so these are then not looked at. A mesh that
    the person has asked for (`are_given`) and on which JAX refuses the program is a finding; one
    that we have chosen is a note.
    """
    stuck = [_deadlock(run) for run in (runs.one, *runs.many) if _kind(run) == "deadlock"]
    refused = [_refused(run) for run in runs.many if are_given and _kind(run) == "refused"]
    notes = (*runs.notes, *_not_run(runs, are_given), *_run_notes(runs))
    if stuck or runs.one.failure:
        return RunComparison((*stuck[:1], *refused[:1]), notes)
    copies = differing_replicas(runs)
    if copies:
        return RunComparison((*refused, *copies), notes)
    compared = compare_with_one_device(runs)
    return RunComparison((*refused, *compared.findings), (*notes, *compared.notes))


def merge_findings(static: Iterable[Finding], found: Sequence[Finding]) -> list[Finding]:
    """Return all findings, where a warning that explains an error gives its line to it."""
    kept = list(static)
    errors = []
    for error in found:
        if any(_has_said(each, error) for each in kept):
            continue
        code = _EXPLAINED_BY.get(error.cause)
        clue = next((each for each in kept if each.code == code and _share_axes(each, error)), None)
        if clue is not None and error.code == "hazard.mesh_dependent":
            kept = [each for each in kept if each is not clue]
            shows = (*error.shows, f"{clue.where}: {clue.what}")
            fix = clue.fix if error.cause in _MENDED_ALIKE else error.fix
            error = replace(error, where=clue.where or error.where, shows=shows, fix=fix)
        errors.append(error)
    return [*errors, *kept]


def _has_said(clue: Finding, error: Finding) -> bool:
    """Say whether a warning is about what a JAX that is stricter than others refuses."""
    is_order = error.details.get("error") == "simulate.permutation_order"
    return is_order and clue.code == "hazard.ppermute_axis_order"


def _share_axes(clue: Finding, error: Finding) -> bool:
    over = clue.details.get("mesh_axes")
    return over is None or bool(set(over) & set(error.details["mesh_axes"]))


# ------------------------------------------------------------------------------ what did not run


def _kind(run: MeshRun) -> str:
    return run.failure.kind if run.failure else ""


def _deadlock(run: MeshRun) -> Finding:
    assert run.failure is not None
    shows = (f"on {run.mesh_text}: {run.failure.where}",)
    return finding(
        "hazard.deadlock",
        run.failure.words,
        _place(run.failure.where),
        run.failure.fix,
        shows=shows,
    )


def _place(where: str) -> SourceLocation | None:
    """Return the place in words such as `psum at file.py:3 (body), under ...`."""
    found = re.match(
        r"(?:.* at )?([^,]+?):(\d+)(?::\d+)?(?: \(([\w<>]+)\))?", where.partition(", under")[0]
    )
    return SourceLocation(found[1], int(found[2]), found[3] or "") if found else None


def _refused(run: MeshRun) -> Finding:
    assert run.failure is not None
    return finding(
        "jax.rejected",
        f"JAX refuses the program on {run.mesh_text}: {run.failure.words}",
        _place(run.failure.where),
        run.failure.fix
        or "give a mesh that it is written for, or make the sizes follow from the mesh.",
        details={"error": run.failure.code},
    )


def _not_run(runs: MeshRuns, are_given: bool) -> tuple[str, ...]:
    if runs.one.failure is not None and _kind(runs.one) != "deadlock":
        return (
            "NOTHING WAS COMPARED: on one device, with which all else is compared, the program "
            f"fails: {runs.one.failure.words}",
        )
    failed = [run for run in runs.many if run.failure and _kind(run) != "deadlock"]
    notes = [_why(run) for run in failed if not (are_given and _kind(run) == "refused")]
    if runs.not_one is not None:
        with_what = (
            f"All else was compared with {runs.reference}, the smallest mesh that it runs on."
            if runs.compared_on
            else f"NOTHING WAS COMPARED: it ran on {runs.reference} alone. Give several meshes."
        )
        notes.insert(0, f"On one device the program fails: {runs.not_one.words} {with_what}")
    elif runs.many and len(failed) == len(runs.many):
        notes.append(
            "NOTHING WAS COMPARED WITH ONE DEVICE: the program ran on no other mesh. Give meshes "
            "that fit it (meshes=...), or arrays that 2, 3, 4 and 8 divide."
        )
    return tuple(notes)


def _why(run: MeshRun) -> str:
    assert run.failure is not None
    if run.failure.kind == "indivisible":
        return f"Not run on {run.mesh_text}, which does not divide its arrays evenly."
    return f"Not run on {run.mesh_text}: {run.failure.words}"


def _run_notes(runs: MeshRuns) -> tuple[str, ...]:
    return tuple(dict.fromkeys(note for run in (runs.one, *runs.many) for note in run.notes))


_ONE = ((2,), (3,), (4,), (8,))
_TWO = ((2, 1), (1, 2), (2, 4), (4, 2), (3, 1), (1, 3))


def default_test_meshes(axis_names: Sequence[str]) -> list[Mesh]:
    """Return meshes with these axis names, beside that of one device.

    Along each axis alone, so that a difference can be put down to it, and along all together.
    """
    names = tuple(axis_names)
    if len(names) == 1:
        rows: list[tuple[int, ...]] = list(_ONE)
    elif len(names) == 2:
        rows = list(_TWO)
    else:
        rows = [tuple(2 if i == j else 1 for j in range(len(names))) for i in range(len(names))]
        rows += [(2,) * len(names), (1,) * (len(names) - 1) + (3,)]
    return [Mesh(list(zip(names, row, strict=True))) for row in rows]
