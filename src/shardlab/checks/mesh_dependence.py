"""Values and gradients that change with the mesh, each root cause once.

What is no finding: an output whose shape depends on the mesh cannot be compared; one that depends
on no argument (a device's own index) and one whose random numbers are drawn from a key of each
device's own differ by design. Each of these is a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardlab.checks import causes
from shardlab.checks.cause_text import cause_message, listed, shown
from shardlab.checks.check_codes import finding
from shardlab.checks.tolerance import Array, Comparison, compare_arrays, tolerance
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.simulator.run_records import MeshRun, MeshRuns, OutputLeaf, OutputLineage


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One output or gradient that changes with the mesh, and why."""

    path: str
    seen: tuple[Comparison, ...]
    lineage: OutputLineage
    cause: str = ""
    mesh_axes: tuple[str, ...] = ()
    part: str = ""  # the argument that is counted n times, or beside which all else is
    variant: str = ""  # of the cause, for which there are words of its own


@dataclass(frozen=True)
class RunComparison:
    """What comparing with one device has led to."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Say whether what ran gave the same everywhere."""
        return not any(found.code.startswith("hazard.") for found in self.findings)

    @property
    def is_unexplained(self) -> bool:
        """Say whether results change with the mesh, and nothing tells why."""
        return any(
            found.code == "hazard.mesh_dependent"
            and not found.cause
            and found.details["reference"] == "one device"
            for found in self.findings
        )

    def explained_by(self, other: RunComparison) -> RunComparison:
        """Return what more meshes have shown, if they tell the cause; else this."""
        return self if other.is_unexplained or not other.findings else other


@dataclass
class _Kind:
    """Outputs or gradients: how they are read from a run, and called."""

    name: str
    notes: list[str] = field(default_factory=list)

    def leaves(self, run: MeshRun) -> Mapping[str, OutputLeaf]:
        return run.outputs if self.name == "output" else run.gradients


def compare_with_one_device(runs: MeshRuns) -> RunComparison:
    """Return a finding for each cause for which results change with the mesh.

    Gradients are compared where all values agree: those of wrong values are wrong for the same
    reason.
    """
    outputs = _Kind("output")
    differences = _differences(runs, outputs)
    if differences:
        return RunComparison(_merged(runs, differences, "output"), tuple(outputs.notes))
    gradients = _Kind("gradient")
    by_design = bool(outputs.notes)
    differences = [] if by_design else _differences(runs, gradients)
    found = _merged(runs, differences, "gradient") if differences else ()
    return RunComparison(found, (*outputs.notes, *gradients.notes))


def _differences(runs: MeshRuns, kind: _Kind) -> list[Difference]:
    found = []
    for path, one in kind.leaves(runs.one).items():
        seen = _comparisons(runs, path, one, kind)
        if all(c.agrees for c in seen):
            continue
        lineage = next(
            kind.leaves(run)[path].lineage for run in runs.many if path in kind.leaves(run)
        )
        if kind.name == "output" and _is_by_design(path, lineage, seen, kind):
            continue
        # What is divided by the size of a mesh axis is divided by 1 on one device.
        lineage = replace(lineage, divided_by=one.lineage.divided_by)
        if runs.not_one:
            # All sizes here are multiples of one that is not known.
            found.append(
                Difference(path=path, seen=tuple(seen), lineage=lineage, variant="no_one_device")
            )
            continue
        found.append(explain(path, seen, lineage, runs.arguments))
    return found


def _comparisons(runs: MeshRuns, path: str, one: OutputLeaf, kind: _Kind) -> list[Comparison]:
    seen = []
    shapes = set()
    for run in runs.many:
        leaf = kind.leaves(run).get(path)
        if leaf is None:
            continue
        shapes.add(leaf.value.shape)
        if leaf.value.shape == one.value.shape:
            seen.append(Comparison(run.mesh, one.value, leaf.value, tolerance(one, leaf)))
    if shapes - {one.value.shape}:
        told = ", ".join(map(str, sorted(shapes | {one.value.shape})))
        kind.notes.append(
            f"{_called(path)} was not compared with one device: its shape depends on the mesh "
            f"({told})."
        )
        return []
    return seen


def _is_by_design(
    path: str, lineage: OutputLineage, seen: Sequence[Comparison], kind: _Kind
) -> bool:
    if "by_device" in lineage.random and not causes.same_random_numbers(seen):
        kind.notes.append(
            f"{_called(path)} was not compared with one device: each device draws random numbers "
            "from a key of its own, so they differ by design."
        )
        return True
    if not lineage.has_arguments and not lineage.random:
        kind.notes.append(
            f"{_called(path)} changes with the mesh and depends on no argument: taken as meant."
        )
        return True
    return False


def explain(
    path: str, seen: Sequence[Comparison], lineage: OutputLineage, arguments: Mapping[str, Array]
) -> Difference:
    """Return a difference with its cause, the mesh axes, and the argument that it is about."""

    def told(
        cause: str, axes: tuple[str, ...] = (), part: str = "", variant: str = ""
    ) -> Difference:
        return Difference(
            path=path,
            seen=tuple(seen),
            lineage=lineage,
            cause=cause,
            mesh_axes=axes,
            part=part,
            variant=variant,
        )

    is_random = bool(lineage.random)
    if is_random and (axes := causes.same_random_numbers(seen)):
        return told("same_random_numbers", axes)
    for cause in (causes.factor_of_n, causes.divided_by_n, causes.shards_permuted):
        if axes := cause(seen):
            is_written = cause is causes.factor_of_n and lineage.divided_by
            return told(cause.__name__, axes, variant="written" if is_written else "")
    bias = causes.bias_n_times(seen, arguments)
    if not (bias and bias[1]) and (beside := causes.factor_beside(seen, arguments)):
        return told(*beside, variant="beside")
    if bias:
        # Of a gradient, this is what an update by too large a one looks like.
        is_update = lineage.is_gradient and not bias[1]
        return (
            told("gradient_scaled_by_n", bias[0], variant="update")
            if is_update
            else told("bias_n_times", *bias)
        )
    if is_random:
        return told("same_random_numbers", _differing_axes(seen))
    if axes := causes.only_shard_0(seen):
        return told("only_shard_0", axes)
    if lineage.sums_ratios:
        axes = _differing_axes(seen)
        if causes.is_sum(seen, axes):
            return told("factor_of_n", axes, variant="sum_of_means")
        return told("mean_of_means", axes)
    return told("", variant="" if lineage.has_collectives else "alone")


def _differing_axes(seen: Sequence[Comparison]) -> tuple[str, ...]:
    """Return the fewest mesh axes without which every mesh agrees."""
    names = [name for name, _ in seen[0].mesh]
    for name in names:
        if all(c.agrees for c in seen if c.n((name,)) == 1):
            return (name,)
    return tuple(names)


# ------------------------------------------------------------------------- one finding per cause


def _merged(runs: MeshRuns, differences: list[Difference], kind: str) -> tuple[Finding, ...]:
    """Return one finding for each named cause; what has no name follows from the others."""
    by_cause: dict[str, list[Difference]] = {}
    for each in differences:
        by_cause.setdefault(_cause(each, differences, kind, runs), []).append(each)
    unnamed = by_cause.pop("", [])
    if not by_cause:
        return (_finding(runs, "", unnamed, kind, []),)
    return tuple(
        _finding(runs, cause, each, kind, unnamed if number == 0 else [])
        for number, (cause, each) in enumerate(by_cause.items())
    )


def _cause(each: Difference, differences: list[Difference], kind: str, runs: MeshRuns) -> str:
    if each.cause not in ("factor_of_n", "divided_by_n") or each.variant == "sum_of_means":
        return each.cause
    if kind == "gradient" or (each.part and each.lineage.is_gradient):
        return "gradient_scaled_by_n"
    # A gradient that the program takes itself, of a loss that is right.
    wrong = {other.path for other in differences}
    values = [path for path, leaf in runs.one.outputs.items() if not leaf.lineage.is_gradient]
    is_gradient = each.lineage.is_gradient and not wrong & set(values)
    return "gradient_scaled_by_n" if is_gradient and values else each.cause


def _finding(
    runs: MeshRuns, cause: str, found: list[Difference], kind: str, others: list[Difference]
) -> Finding:
    # Outputs that are plainly scaled come before those that an update with these has moved.
    first = next((each for each in found if not each.variant), found[0])
    alike = [each for each in found if each.variant == first.variant]
    others = [*(each for each in found if each.variant != first.variant), *others]
    words = {
        "axes": " and ".join(map(repr, first.mesh_axes)),
        "axis": first.mesh_axes[0] if first.mesh_axes else "",
        "factor": "1/n" if first.cause == "divided_by_n" else "n times",
        "of": "of " if first.cause == "divided_by_n" else "",
        "part": _part(alike),
        "number": next(iter(first.lineage.divided_by), ""),
        "reference": runs.reference,
    }
    # Only a gradient that the program takes itself is within the shard_map that adds it up.
    is_summed = kind == "output" and first.lineage.checks_vma and first.cause != "divided_by_n"
    sentence, fix = cause_message(cause, first.variant, is_summed)
    lines = shown(first.seen, first.cause, runs.reference)
    if others:
        lines += (f"{listed([each.path for each in others], kind)} changes with it.",)
    return finding(
        "hazard.mesh_dependent",
        f"{listed([each.path for each in alike], kind)} {sentence.format(**words)}",
        _where(runs, first),
        fix.format(**words),
        cause=cause,
        shows=lines,
        details={
            "reference": runs.reference,
            "mesh_axes": list(first.mesh_axes),
            "paths": [each.path for each in found],
            "meshes": [_text(c) for c in first.seen if not c.agrees],
            "largest_difference": max(_largest(c) for c in first.seen),
        },
    )


def _part(found: Sequence[Difference]) -> str:
    parts = {each.part for each in found}
    if parts == {""}:
        return "a part of it"
    return f"argument {parts.pop()}" if len(parts) == 1 else "its argument"


def _where(runs: MeshRuns, first: Difference) -> SourceLocation:
    """Return the one collective that can be meant, or else the program."""
    if first.cause == "mean_of_means" or first.variant == "sum_of_means":
        return first.lineage.sums_ratios[0]
    places = {
        source
        for source, axes in first.lineage.sums
        if set(axes) & set(first.mesh_axes) and source.line
    }
    return places.pop() if len(places) == 1 else runs.source


def _called(path: str) -> str:
    return f"Output {path}" if path else "The output"


def _text(c: Comparison) -> str:
    return ",".join(f"{name}={size}" for name, size in c.mesh)


def _largest(c: Comparison) -> float:
    wrong = ~compare_arrays(c.many, c.one, c.atol)
    if not wrong.any():
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(c.many.astype(np.complex128) - c.one.astype(np.complex128))[wrong]
    return float(np.nan_to_num(apart, nan=np.inf).max())
