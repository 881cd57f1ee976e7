"""Values and gradients that depend on the mesh: one finding per root cause.

Not findings, but notes: an output whose shape depends on the mesh, which cannot be compared; an
output that depends on no argument (a device index); an output with random numbers from a different
key on each device, which differs by design.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shardlab.checks import causes
from shardlab.checks.cause_text import (
    CAUSES_OF_REPAIRS,
    cause_message,
    comparison_lines,
    paths_text,
    repair_line,
)
from shardlab.checks.check_codes import make_finding
from shardlab.checks.evidence_text import collective_lines
from shardlab.checks.run_comparison import RunComparison
from shardlab.checks.tolerance import (
    Array,
    Comparison,
    compare_arrays,
    is_close,
    result_tolerance,
)
from shardlab.findings.finding import Finding
from shardlab.findings.source import SourceLocation
from shardlab.sharding.mesh import mesh_text
from shardlab.simulator.repair import Repair
from shardlab.simulator.run_records import MeshRun, MeshRuns, OutputLeaf, OutputLineage


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One output or gradient that depends on the mesh, and the cause."""

    path: str
    comparisons: tuple[Comparison, ...]
    lineage: OutputLineage
    cause: str = ""
    mesh_axes: tuple[str, ...] = ()
    argument: str = ""  # path of the argument that is counted n times, or to which a term is added
    variant: str = ""  # of the cause, for a more specific message
    source: SourceLocation | None = None  # the line that a repair has proven to be the cause


@dataclass
class _LeafKind:
    """Outputs or gradients: where a run has them, and the notes about them."""

    name: str
    notes: list[str] = field(default_factory=list)
    has_own_draws: bool = False

    def leaves(self, run: MeshRun) -> Mapping[str, OutputLeaf]:
        return run.outputs if self.name == "output" else run.gradients


def compare_with_one_device(runs: MeshRuns) -> RunComparison:
    """Return a finding for each cause for which results depend on the mesh.

    Gradients are compared only if all values agree: the gradient of a wrong value is wrong for the
    same reason.
    """
    outputs = _LeafKind("output")
    differences = _find_differences(runs, outputs)
    if differences:
        return RunComparison(_cause_findings(runs, differences, "output"), tuple(outputs.notes))
    gradients = _LeafKind("gradient")
    differs_by_design = bool(outputs.notes)
    differences = [] if differs_by_design else _find_differences(runs, gradients)
    findings = _cause_findings(runs, differences, "gradient") if differences else ()
    return RunComparison(findings, (*outputs.notes, *gradients.notes), outputs.has_own_draws)


def _find_differences(runs: MeshRuns, kind: _LeafKind) -> list[Difference]:
    differences = []
    draws_agree = _draws_agree(runs)
    for path, expected in kind.leaves(runs.one).items():
        comparisons = _compare_leaf(runs, path, expected, kind)
        if all(comparison.agrees for comparison in comparisons):
            continue
        # The lineage of a run that differs; that of the reference may lack collectives.
        lineage = next(
            kind.leaves(run)[path].lineage for run in runs.many if path in kind.leaves(run)
        )
        if draws_agree:
            lineage = replace(lineage, random=lineage.random - {"by_device"})
        is_compared_anyway = runs.has_reference_function and "by_device" not in lineage.random
        if (
            kind.name == "output"
            and not is_compared_anyway
            and _differs_by_design(path, lineage, comparisons, kind, runs.arguments)
        ):
            continue
        # A divisor that is the size of a mesh axis is 1 on one device; what is left there is a
        # constant of the program.
        lineage = replace(lineage, divided_by=expected.lineage.divided_by)
        if runs.one_device_failure:
            # Without one device, n is only known relative to the reference mesh, so no factor fits.
            differences.append(
                Difference(
                    path=path,
                    comparisons=tuple(comparisons),
                    lineage=lineage,
                    variant="no_one_device",
                )
            )
            continue
        differences.append(explain_difference(path, comparisons, lineage, runs.arguments))
    return differences


def _draws_agree(runs: MeshRuns) -> bool:
    """Return whether devices with keys of their own draw the numbers that one device draws.

    That is so if the key belongs to the example and not to the device: `fold_in(key, row)`. An
    output shows it that would change with the keys, and is the same on a mesh.
    """
    for path, expected in runs.one.outputs.items():
        for run in runs.many:
            actual = run.outputs.get(path)
            if actual is None or "by_device" not in actual.lineage.random or run.n_devices == 1:
                continue
            atol = result_tolerance(expected, actual)
            if actual.draw_change > 16 * atol and is_close(actual.value, expected.value, atol):
                return True
    return False


def _compare_leaf(
    runs: MeshRuns, path: str, expected: OutputLeaf, kind: _LeafKind
) -> list[Comparison]:
    comparisons = []
    expected_shape = expected.value.shape
    shapes = {expected_shape}
    for run in runs.many:
        actual = kind.leaves(run).get(path)
        if actual is None:
            continue
        shapes.add(actual.value.shape)
        if actual.value.shape == expected_shape:
            atol = result_tolerance(expected, actual)
            comparisons.append(Comparison(run.mesh, expected.value, actual.value, atol))
    if len(shapes) > 1:
        kind.notes.append(
            f"{_output_name(path)} was not compared with one device: its shape depends on the mesh "
            f"({', '.join(map(str, sorted(shapes)))})."
        )
        return []
    return comparisons


def _differs_by_design(
    path: str,
    lineage: OutputLineage,
    comparisons: Sequence[Comparison],
    kind: _LeafKind,
    arguments: Mapping[str, Array],
) -> bool:
    if "by_device" in lineage.random and not causes.same_random_numbers(comparisons):
        kind.has_own_draws = True
        kind.notes.append(
            f"{_output_name(path)} was not compared with one device: each device draws random "
            "numbers from its own key, so they differ by design."
        )
        return True
    if not (lineage.has_arguments or lineage.random) and not causes.is_count_of_shard(
        comparisons, arguments
    ):
        kind.notes.append(
            f"{_output_name(path)} depends on the mesh and on no argument; that is assumed to be "
            "intended."
        )
        return True
    return False


def explain_difference(
    path: str,
    comparisons: Sequence[Comparison],
    lineage: OutputLineage,
    arguments: Mapping[str, Array],
) -> Difference:
    """Return a difference with its cause, mesh axes and the argument involved."""

    def difference(
        cause: str, axes: tuple[str, ...] = (), argument: str = "", variant: str = ""
    ) -> Difference:
        return Difference(
            path=path,
            comparisons=tuple(comparisons),
            lineage=lineage,
            cause=cause,
            mesh_axes=axes,
            argument=argument,
            variant=variant,
        )

    # Most specific first: a cause that fits by chance must not hide a more precise one.
    is_random = bool(lineage.random)
    if is_random and (axes := causes.same_random_numbers(comparisons)):
        return difference("same_random_numbers", axes)
    for cause in (causes.factor_of_n, causes.divided_by_n, causes.shards_permuted):
        if axes := cause(comparisons):
            return difference(cause.__name__, axes, variant=_scaled_variant(cause, lineage))
    # A bias that equals an argument is certain; `argument + scaled term` is tried before one that
    # does not, because it also explains a single mesh size.
    bias = causes.bias_n_times(comparisons, arguments)
    if not (bias and bias[1]) and (scaled := causes.factor_beside(comparisons, arguments)):
        return difference(*scaled, variant="beside")
    # An unnamed term of a gradient may be a gradient that is counted n times, or a bias in the
    # value from which the gradient follows: the numbers are the same.
    if bias and (bias[1] or not lineage.is_gradient):
        return difference("bias_n_times", *bias)
    # Random values on every mesh: no numeric cause fits, but the program shows that devices which
    # have different data combine it with the same random numbers.
    differing = _differing_axes(comparisons)
    if is_random and set(differing) <= set(lineage.repeats_random):
        return difference("same_random_numbers", differing)
    # Without a collective and without a device index every device computes the same function of
    # its shard. If that is right for the first shard only, each shard is taken for the first.
    is_local = not (lineage.has_collectives or lineage.has_device_index)
    if is_local and (axes := causes.only_shard_0(comparisons)):
        return difference("only_shard_0", axes)
    return difference("", variant="alone" if not lineage.has_collectives else "")


def _scaled_variant(cause: object, lineage: OutputLineage) -> str:
    if cause is causes.factor_of_n and lineage.divided_by:
        return "written"
    if cause is causes.divided_by_n and not lineage.has_arguments:
        return "count_of_shard"
    is_number = cause is not causes.shards_permuted and not lineage.has_collectives
    return "number" if is_number else ""


def _differing_axes(comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Return the fewest mesh axes such that every mesh without them agrees."""
    names = [name for name, _ in comparisons[0].mesh]
    for name in names:
        if all(comparison.agrees for comparison in comparisons if comparison.n((name,)) == 1):
            return (name,)
    return tuple(names)


# ------------------------------------------------------------------------- one finding per cause


def _cause_findings(
    runs: MeshRuns, differences: list[Difference], kind: str
) -> tuple[Finding, ...]:
    """Return one finding for each known cause; unexplained differences follow from the first."""
    # A wrong value makes its gradients wrong, never the other way round: what explains a gradient
    # by itself may be a coincidence if values differ too.
    values = [item for item in differences if not item.lineage.is_gradient]
    roots = values or differences
    by_cause: dict[str, list[Difference]] = {}
    for difference in roots:
        cause = _reported_cause(difference, differences, kind, runs)
        by_cause.setdefault(cause, []).append(difference)
    if "" in by_cause:
        _drop_uncertain_causes(by_cause)
    unexplained = by_cause.pop("", [])
    if not by_cause:
        return (_cause_finding(runs, "", unexplained, kind, _rest(differences, unexplained)),)
    unexplained += _rest(differences, roots)
    return tuple(
        _cause_finding(runs, cause, group, kind, unexplained if number == 0 else [])
        for number, (cause, group) in enumerate(by_cause.items())
    )


def _drop_uncertain_causes(by_cause: dict[str, list[Difference]]) -> None:
    """Move a term that equals no argument to the unexplained differences.

    Any difference that grows linearly with n looks like such a term, so it explains an output only
    if it explains all of them.
    """
    terms = by_cause.get("bias_n_times", [])
    unnamed = [item for item in terms if not item.argument]
    if unnamed:
        by_cause[""] += unnamed
        named = _rest(terms, unnamed)
        del by_cause["bias_n_times"]
        if named:
            by_cause["bias_n_times"] = named


def _rest(differences: Sequence[Difference], excluded: Sequence[Difference]) -> list[Difference]:
    paths = {item.path for item in excluded}
    return [item for item in differences if item.path not in paths]


def _reported_cause(
    difference: Difference, differences: list[Difference], kind: str, runs: MeshRuns
) -> str:
    """Return the cause, where a scaled value may have to be reported as a scaled gradient."""
    is_scaled = difference.cause in ("factor_of_n", "divided_by_n")
    if not is_scaled or difference.variant == "sum_of_means":
        return difference.cause
    # An update `w - rate * gradient` shows as a scaled term next to the argument w.
    if kind == "gradient" or (difference.argument and difference.lineage.is_gradient):
        return "gradient_scaled_by_n"
    # A gradient that the program computes itself, next to a loss that is right.
    wrong_paths = {item.path for item in differences}
    value_paths = [path for path, leaf in runs.one.outputs.items() if not leaf.lineage.is_gradient]
    is_gradient = difference.lineage.is_gradient and not wrong_paths & set(value_paths)
    return "gradient_scaled_by_n" if is_gradient and value_paths else difference.cause


def _cause_finding(
    runs: MeshRuns, cause: str, group: list[Difference], kind: str, unexplained: list[Difference]
) -> Finding:
    # Report plainly scaled outputs before those that an update with them has changed.
    first = next((item for item in group if not item.variant), group[0])
    alike = [item for item in group if item.variant == first.variant]
    consequences = [*(item for item in group if item.variant != first.variant), *unexplained]
    is_divided = first.cause == "divided_by_n"
    fields = {
        "axes": " and ".join(map(repr, first.mesh_axes)),
        "axis": first.mesh_axes[0] if first.mesh_axes else "",
        "factor": "1/n" if is_divided else "n times",
        "factor_of": "of " if is_divided else "",
        "argument": _argument_text(alike),
        "number": next(iter(first.lineage.divided_by), ""),
        "place": runs.reference_phrase,
    }
    # JAX inserts the sum of a gradient only inside the shard_map where the program computes it.
    is_summed = kind == "output" and first.lineage.checks_vma and not is_divided
    sentence, fix = cause_message(cause, first.variant, is_summed)
    if not (cause or runs.has_reference_function):
        fix += _DEPENDS_BY_DESIGN
    lines = comparison_lines(first.comparisons, first.cause, _reference_label(runs))
    if consequences:
        lines += (f"{paths_text([item.path for item in consequences], kind)} changes with it.",)
    if not cause:
        lines += collective_lines(first.lineage)
    return make_finding(
        "hazard.mesh_dependent",
        f"{paths_text([item.path for item in alike], kind)} {sentence.format(**fields)}",
        _cause_location(runs, first),
        fix.format(**fields),
        cause=cause,
        shows=lines,
        details={
            "reference": runs.reference,
            "kind": kind,
            "mesh_axes": list(first.mesh_axes),
            "paths": [item.path for item in group],
            "meshes": [mesh_text(item.mesh) for item in first.comparisons if not item.agrees],
            "largest_difference": max(_largest_difference(item) for item in first.comparisons),
        },
    )


# ------------------------------------------------------------------------ causes tested by repairs


def repairable_paths(runs: MeshRuns) -> list[str]:
    """Return the outputs that a repair must make right: all values, or if they agree all outputs.

    A repair changes the forward pass only. The gradients of a value that it makes right stay those
    of the wrong program, so they prove nothing.
    """
    paths = list(runs.one.outputs)
    values = [path for path in paths if not runs.one.outputs[path].lineage.is_gradient]
    is_value_wrong = any(not _agrees(runs, run, path) for path in values for run in runs.many)
    return values if is_value_wrong else paths


def _agrees(runs: MeshRuns, run: MeshRun, path: str) -> bool:
    actual = run.outputs.get(path)
    return actual is None or _is_right(runs, path, np.asarray(actual.value), actual)


def _is_right(runs: MeshRuns, path: str, value: Array, actual: OutputLeaf | None) -> bool:
    expected = runs.one.outputs[path]
    return is_close(value, expected.value, result_tolerance(expected, actual))


def is_repaired(runs: MeshRuns, values: Mapping[str, Array] | None) -> bool:
    """Return whether outputs, by path, are those of one device."""
    return values is not None and all(
        _is_right(runs, path, value, None) for path, value in values.items()
    )


def explain_by_repairs(
    runs: MeshRuns, repairs: Sequence[Repair], comparison: RunComparison
) -> RunComparison:
    """Return the comparison with the cause that the repairs prove, if they agree on one."""
    if len({CAUSES_OF_REPAIRS[item.kind] for item in repairs}) != 1:
        return comparison
    differences = _find_differences(runs, _LeafKind("output"))
    repair = repairs[0]
    variant = "sum_of_means" if repair.is_summed else "repaired"
    cause = "factor_of_n" if repair.is_summed else CAUSES_OF_REPAIRS[repair.kind]
    values = [item for item in differences if not item.lineage.is_gradient]
    sources = {item.source for item in repairs}
    proven = [
        replace(
            item,
            cause=cause,
            mesh_axes=repair.mesh_axes,
            argument="",
            variant=variant,
            source=repair.source if len(sources) == 1 else None,
        )
        for item in values or differences
    ]
    is_gradient = (
        not values
        and cause in ("factor_of_n", "divided_by_n")
        # Weights that are right were updated with the right gradient: then the sum is another one.
        and not _has_right_update(runs, proven)
    )
    reported = "gradient_scaled_by_n" if is_gradient else cause
    finding = _cause_finding(runs, reported, proven, "output", _rest(differences, proven))
    # Two operations of one line read alike.
    lines = (*finding.shows, *dict.fromkeys(repair_line(item) for item in repairs))
    others = [item for item in comparison.findings if item.code != "hazard.mesh_dependent"]
    return RunComparison((*others, replace(finding, shows=lines)), comparison.notes)


def _has_right_update(runs: MeshRuns, wrong: Sequence[Difference]) -> bool:
    """Return whether an array that a gradient has changed is the same on every mesh."""
    wrong_paths = {item.path for item in wrong}
    return any(
        leaf.lineage.is_gradient and leaf.value.ndim > 0 and path not in wrong_paths
        for path, leaf in runs.one.outputs.items()
    )


def _argument_text(differences: Sequence[Difference]) -> str:
    arguments = {difference.argument for difference in differences}
    if arguments == {""}:
        return "one of its terms"
    return f"argument {arguments.pop()}" if len(arguments) == 1 else "its argument"


def _cause_location(runs: MeshRuns, difference: Difference) -> SourceLocation:
    """Return the one collective that can be the cause, or else the program."""
    if difference.source is not None:
        return difference.source
    sources = {
        source
        for source, axes in difference.lineage.sums
        if set(axes) & set(difference.mesh_axes) and source.line
    }
    return sources.pop() if len(sources) == 1 else runs.source


_DEPENDS_BY_DESIGN = (
    " If the result is meant to depend on the mesh, pass the right one: reference=function."
)


def _reference_label(runs: MeshRuns) -> str:
    return "reference" if runs.has_reference_function else runs.reference_phrase


def _output_name(path: str) -> str:
    return f"Output {path}" if path else "The output"


def _largest_difference(comparison: Comparison) -> float:
    expected, actual = comparison.expected, comparison.actual
    wrong = ~compare_arrays(actual, expected, comparison.atol)
    if not wrong.any():
        return 0.0
    with np.errstate(invalid="ignore"):
        distance = np.abs(actual.astype(np.complex128) - expected.astype(np.complex128))[wrong]
    return float(np.nan_to_num(distance, nan=np.inf).max())
