"""Checks a mesh that is too large to run on scaled-down meshes, and says what carries over.

A device of a scaled-down mesh has shards of the same shapes as on the full mesh, because the
sharded dimensions of the arguments shrink with the mesh axes. What must hold for the result to
carry over is a list of obligations; each is checked, and the full mesh is traced for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from shardlab._text.units import bytes_text
from shardlab.analysis.run_arguments import count_argument_bytes, error_summary
from shardlab.analysis.scaling.obligations import (
    SAME_PROGRAM,
    VALUES,
    ScaledTrial,
    trace_full_mesh,
    try_scaled_meshes,
)
from shardlab.analysis.scaling.run_cost import MAX_SCALED_FLOPS, estimate_run_cost
from shardlab.analysis.scaling.scaled_arguments import list_scaled_meshes
from shardlab.findings.scaled_proof import Obligation, ScaledProof
from shardlab.sharding.mesh import Mesh

if TYPE_CHECKING:
    from shardlab.checks.run_comparison import RunComparison
    from shardlab.findings.finding import Finding

# Running larger arguments on one real device takes minutes, and its memory.
MAX_ARGUMENT_BYTES = 2**30
# The cost of a run is not estimated for smaller meshes: one more trace costs as much.
_SMALL_MESH = 64
# Runs the program with these arguments on a mesh and compares; the meshes whose results were
# compared are the second part.
Compare = Callable[[Sequence[Any], Mesh], "tuple[RunComparison, tuple[str, ...]]"]


@dataclasses.dataclass(frozen=True)
class LargeMesh:
    """A mesh that is not run, why, and the program traced on it (None if that failed)."""

    mesh: Mesh
    reason: str
    closed: Any


@dataclasses.dataclass(frozen=True)
class ScaledResult:
    """What the scaled-down runs found, and the proof."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    proof: ScaledProof


def find_large_meshes(
    f: Callable[..., Any], args: Sequence[Any], meshes: Sequence[Mesh], scaled: bool | None
) -> Iterator[LargeMesh]:
    """Yield the meshes on which the program would take too long or too much memory to run.

    With `scaled` True these are all that can be scaled down, with False none.
    """
    if scaled is False:
        return
    n_bytes = count_argument_bytes(args)
    for mesh in meshes:
        if not list_scaled_meshes(mesh):
            continue
        reason = "scaled-down runs were requested" if scaled else ""
        if n_bytes > MAX_ARGUMENT_BYTES:
            reason = f"the arguments take {bytes_text(n_bytes)}"
        if not reason and mesh.n_devices <= _SMALL_MESH:
            continue
        try:
            closed = trace_full_mesh(f, args, mesh)
        except Exception as error:
            if reason:
                yield LargeMesh(mesh, f"JAX rejects the program: {error_summary(error)}", None)
            continue  # the run reports it
        reason = reason or estimate_run_cost(closed, mesh.n_devices).reason_too_large()
        if reason:
            yield LargeMesh(mesh, reason, closed)


def check_large_mesh(
    f: Callable[..., Any],
    args: Sequence[Any],
    large: LargeMesh,
    compare: Compare,
    report_progress: Callable[[str], None],
) -> ScaledResult:
    """Return what the program does on scaled-down meshes, and whether that carries over."""
    if large.closed is None:
        what = f"{large.reason}."
        return _result(large, (), (Obligation(name=SAME_PROGRAM, holds=False, what=what),))
    report_progress(f"comparing the program on {large.mesh} with scaled-down meshes")
    trial = try_scaled_meshes(f, args, large.mesh, large.closed)
    if not trial.meshes:
        return _result(large, (), trial.obligations)
    too_large = _reason_not_to_run(trial)
    if too_large:
        values = Obligation(
            name=VALUES,
            holds=False,
            what=f"not compared: {too_large}. Pass smaller arguments with the same ranks.",
        )
        return _result(large, trial.meshes, (*trial.obligations, values))
    findings: list[Finding] = []
    notes: dict[str, None] = {}
    uncompared: dict[str, None] = {}
    for mesh, arguments in zip(trial.meshes, trial.arguments, strict=True):
        comparison, compared_on = compare(arguments, mesh)
        findings += comparison.findings
        notes.update(dict.fromkeys(comparison.notes))
        uncompared.update(dict.fromkeys(comparison.uncompared))
        if not comparison.agrees:
            uncompared[f"the values differ on {mesh}: see the findings."] = None
            break  # the other meshes would show the same finding
        if str(mesh) not in compared_on:
            uncompared[f"the program was not compared on {mesh}."] = None
    values = _values_obligation(trial.meshes, tuple(uncompared))
    return _result(large, trial.meshes, (*trial.obligations, values), tuple(findings), tuple(notes))


def _reason_not_to_run(trial: ScaledTrial) -> str:
    for mesh, arguments, closed in zip(trial.meshes, trial.arguments, trial.jaxprs, strict=True):
        n_bytes = count_argument_bytes(arguments)
        if n_bytes > MAX_ARGUMENT_BYTES:
            return f"on {mesh} the arguments still take {bytes_text(n_bytes)}"
        reason = estimate_run_cost(closed, mesh.n_devices).reason_too_large(MAX_SCALED_FLOPS)
        if reason:
            return f"on {mesh} {reason}"
    return ""


def _values_obligation(meshes: Sequence[Mesh], uncompared: Sequence[str]) -> Obligation:
    if uncompared:
        return Obligation(name=VALUES, holds=False, what=uncompared[0])
    sizes = {size for mesh in meshes for size in mesh.shape.values()}
    has_odd_size = any(size & (size - 1) for size in sizes)
    kind = "one size is not a power of two" if has_odd_size else "all sizes are powers of two"
    return Obligation(
        name=VALUES, holds=True, what=f"right on each of the {len(meshes)} small meshes; {kind}"
    )


def _result(
    large: LargeMesh,
    meshes: Sequence[Mesh],
    obligations: tuple[Obligation, ...],
    findings: tuple[Finding, ...] = (),
    notes: tuple[str, ...] = (),
) -> ScaledResult:
    proof = ScaledProof(
        mesh=str(large.mesh),
        reason=large.reason,
        scaled_meshes=tuple(map(str, meshes)),
        obligations=obligations,
    )
    return ScaledResult(findings, notes, proof)
