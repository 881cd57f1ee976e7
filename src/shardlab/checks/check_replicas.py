"""Outputs declared replicated whose values differ by device, and the reduction that is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from shardlab._text.units import count_text
from shardlab.checks.check_codes import axes_argument, make_finding
from shardlab.checks.evidence_text import DIGITS, array_text, collective_lines
from shardlab.checks.tolerance import Array, compare_arrays, is_close, rounding_tolerance
from shardlab.findings.finding import Finding
from shardlab.simulator.run_records import MeshRun, MeshRuns, ReplicaValues

_MAX_DEVICES = 8
_MAX_PATHS = 6
# Collective -> cause, verb, reduction; the most likely first.
_REDUCTIONS: dict[str, tuple[str, str, Callable[..., Array]]] = {
    "psum": ("missing_psum", "The values sum to", np.sum),
    "pmean": ("missing_pmean", "The mean of the values is", np.mean),
    "pmax": ("missing_pmax", "The maximum of the values is", np.max),
    "pmin": ("missing_pmin", "The minimum of the values is", np.min),
}


@dataclass(frozen=True)
class _DifferingOutput:
    """An output whose replicas differ: on which meshes, along which axes, and what is missing."""

    occurrences: list[tuple[MeshRun, ReplicaValues]]
    axes: tuple[str, ...]
    missing: str  # the collective that turns the replicas into the one-device value, or ""


def find_differing_replicas(runs: MeshRuns) -> list[Finding]:
    """Return one finding for the outputs of a shard_map whose replicas differ for one reason.

    Outputs for which no missing collective is identified, such as weights that a wrong gradient
    has changed, are reported with the first output that has one.
    """
    # By shard_map output, over all meshes: one finding per output, not per mesh.
    occurrences: dict[object, list[tuple[MeshRun, ReplicaValues]]] = {}
    for run in runs.many:
        for replicas in run.copies:
            if differing_axes(replicas, _run_eps(run)):
                occurrences.setdefault(replicas.key, []).append((run, replicas))
    groups: dict[object, list[_DifferingOutput]] = {}
    for runs_of_output in occurrences.values():
        run, replicas = runs_of_output[0]
        axes = differing_axes(replicas, _run_eps(run))
        missing = _common_missing_reduction(runs, runs_of_output)
        output = _DifferingOutput(runs_of_output, axes, missing)
        groups.setdefault((replicas.source, replicas.body, axes), []).append(output)
    return [
        _replicas_finding(runs, outputs)
        for group in groups.values()
        for outputs in _split_by_reason(group)
    ]


def _split_by_reason(group: list[_DifferingOutput]) -> list[list[_DifferingOutput]]:
    ordered = sorted(group, key=lambda output: output.occurrences[0][1].output_index)
    explained: dict[str, list[_DifferingOutput]] = {}
    for output in ordered:
        if output.missing:
            explained.setdefault(output.missing, []).append(output)
    unexplained = [output for output in ordered if not output.missing]
    if not explained:
        return [unexplained]
    first, *rest = explained.values()
    return [[*first, *unexplained], *rest]


def differing_axes(replicas: ReplicaValues, eps: float) -> tuple[str, ...]:
    """Return the mesh axes along which replicas differ by more than the order of a sum explains."""
    is_inexact = replicas.values.dtype.kind in "fc"
    # Each device may sum in another order, so float replicas may differ by a few roundings.
    atol = rounding_tolerance(replicas.values, eps) if is_inexact else 0.0
    return tuple(
        name
        for dim, name in enumerate(replicas.mesh_axes)
        if not is_close(replicas.values, _repeat_first(replicas.values, dim), atol)
    )


def missing_reduction(
    replicas: ReplicaValues, axes: tuple[str, ...], expected: Array, eps: float
) -> str:
    """Return the collective over `axes` that turns the replicas into `expected`, or ''.

    >>> from shardlab.findings.source import UNKNOWN_LOCATION
    >>> replicas = ReplicaValues(output_index=0, n_outputs=1, body="f",
    ...                          source=UNKNOWN_LOCATION, mesh_axes=("data",),
    ...                          values=np.array([1.0, 2.0, 4.0]))
    >>> missing_reduction(replicas, ("data",), np.array(7.0), 1e-7)
    'psum'
    """
    values = values_by_device(replicas, axes)
    dims = tuple(range(len(axes)))
    if values.dtype.kind not in "fciu" or expected.shape != values.shape[len(axes) :]:
        return ""
    for name, (_, _, reduce) in _REDUCTIONS.items():
        # Complex numbers have no order.
        if values.dtype.kind == "c" and name in ("pmax", "pmin"):
            continue
        # Relative to the replicas too: their sum may be much smaller than they are.
        atol = rounding_tolerance(np.append(expected, values).astype(values.dtype), eps)
        if is_close(np.asarray(reduce(values, axis=dims)), expected, atol):
            return name
    return ""


def values_by_device(replicas: ReplicaValues, axes: tuple[str, ...]) -> Array:
    """Return the replicas with a leading dimension for each of `axes`; they differ along no other.

    Along the other mesh axes the replicas are equal, so the first is taken.
    """
    index = tuple(slice(None) if name in axes else 0 for name in replicas.mesh_axes)
    values: Array = replicas.values[index]
    return values


# ----------------------------------------------------------------------------------- the finding


def _replicas_finding(runs: MeshRuns, outputs: list[_DifferingOutput]) -> Finding:
    first, *others = outputs
    run, replicas = first.occurrences[0]
    axes = " and ".join(repr(axis) for axis in first.axes)
    explanation, fix = _explain_missing_reduction(first, axes)
    others_text = f" and {count_text(len(others), 'more output')}" if others else ""
    verb = "differ" if others else "differs"
    lines = _value_lines(
        run, replicas, first.axes, _one_device_value(runs, run, replicas), runs.reference
    )
    if others:
        all_paths = (_output_path(*output.occurrences[0]) for output in others)
        paths = [path for path in all_paths if path]
        names = ", ".join(paths[:_MAX_PATHS])
        rest = f" and {len(paths) - _MAX_PATHS} more" if len(paths) > _MAX_PATHS else ""
        lines += (f"the others: {names}{rest}",) if paths else ()
    path = _output_path(run, replicas)
    if not first.missing and path is not None:
        lines += collective_lines(run.outputs[path].lineage)
    return make_finding(
        "hazard.replicas_differ",
        f"{_output_name(run, replicas)}{others_text} {verb} between devices, but out_specs declare "
        f"{'them' if others else 'it'} replicated over {axes}.{explanation}",
        replicas.source,
        fix,
        cause=_REDUCTIONS[first.missing][0] if first.missing else "",
        shows=lines,
        details={
            "mesh_axes": list(first.axes),
            "meshes": [run.mesh_text for run, _ in first.occurrences],
            "output": path,
            "outputs": [_output_path(*output.occurrences[0]) for output in outputs],
        },
    )


def _explain_missing_reduction(output: _DifferingOutput, axes: str) -> tuple[str, str]:
    """Return the sentence about the missing collective, and the fix."""
    name = output.missing
    if not name:
        return "", (
            f"make the values equal (psum or pmean over {axes}), or shard the output over {axes} "
            "in out_specs; with check_vma=True JAX rejects this while tracing."
        )
    run, replicas = output.occurrences[0]
    _, sentence, _ = _REDUCTIONS[name]
    explanation = f" {sentence} the one-device value: a {name} over {axes} is missing."
    path = _output_path(run, replicas)
    argument = axes_argument(output.axes)
    if path is not None and run.outputs[path].lineage.is_gradient:
        return explanation, (
            f"call jax.lax.{name}(gradients, {argument}) before they are used or returned; with "
            "check_vma=True JAX rejects this while tracing."
        )
    return explanation, (
        f"return jax.lax.{name}(value, {argument}), or shard it over {axes} in out_specs."
    )


def _common_missing_reduction(
    runs: MeshRuns, occurrences: list[tuple[MeshRun, ReplicaValues]]
) -> str:
    """Return the collective that is missing on every mesh, or ''."""
    names = set()
    for run, replicas in occurrences:
        eps = _run_eps(run)
        expected = _one_device_value(runs, run, replicas)
        axes = differing_axes(replicas, eps)
        names.add("" if expected is None else missing_reduction(replicas, axes, expected, eps))
    return names.pop() if len(names) == 1 else ""


def _one_device_value(runs: MeshRuns, run: MeshRun, replicas: ReplicaValues) -> Array | None:
    """Return the same output on one device; in a loop, of the same iteration."""
    if runs.one_device_failure:
        return None
    if runs.has_reference_function:
        path = _output_path(run, replicas)
        return None if path is None else np.asarray(runs.one.outputs[path].value)
    # A shard_map in a loop records its outputs once per iteration, always in the same order.
    same_output = [item for item in run.copies if item.key == replicas.key]
    iteration = next(i for i, item in enumerate(same_output) if item is replicas)
    on_one_device = [item for item in runs.one.copies if item.key == replicas.key]
    if iteration >= len(on_one_device):
        return None
    return np.asarray(on_one_device[iteration].values)


def _output_name(run: MeshRun, replicas: ReplicaValues) -> str:
    path = _output_path(run, replicas)
    if path is not None:
        return f"Output {path} of '{replicas.body}'" if path else f"The output of '{replicas.body}'"
    which = (
        "The output"
        if replicas.n_outputs == 1
        else f"Output {replicas.output_index} of {replicas.n_outputs}"
    )
    return f"{which} of '{replicas.body}'"


def _output_path(run: MeshRun, replicas: ReplicaValues) -> str | None:
    """Return the path of the program output that this is: the one with the same values.

    A shard_map's outputs have numbers only; the program may have renamed or reordered them.
    """
    first = replicas.values[(0,) * len(replicas.mesh_axes)]
    for path, leaf in run.outputs.items():
        if leaf.value.shape == first.shape and is_close(leaf.value, first, 0.0):
            return path
    return None


def _value_lines(
    run: MeshRun,
    replicas: ReplicaValues,
    axes: tuple[str, ...],
    expected: Array | None,
    reference: str,
) -> tuple[str, ...]:
    values = values_by_device(replicas, axes)
    coordinates = list(product(*map(range, values.shape[: len(axes)])))
    index, digits = _shown_element(values, coordinates, _run_eps(run))
    element = f", element {list(index)}" if index else ""
    lines = [f"on {run.mesh_text}{element}:"]
    for coordinate in coordinates[:_MAX_DEVICES]:
        device = " ".join(f"{name}={i}" for name, i in zip(axes, coordinate, strict=True))
        lines.append(f"  {device}: {array_text(values[coordinate][index], digits)}")
    if len(coordinates) > _MAX_DEVICES:
        lines.append(f"  ... and {len(coordinates) - _MAX_DEVICES} more")
    if expected is not None:
        value = expected[index] if expected.shape == values.shape[len(axes) :] else expected
        lines.append(f"on {reference}: {array_text(value, digits)}".removeprefix("on the "))
    return tuple(lines)


def _shown_element(
    values: Array, coordinates: list[tuple[int, ...]], eps: float
) -> tuple[tuple[int, ...], int]:
    """Return the index of an element that differs, and digits that show it.

    The index is empty if the shortened arrays differ as they are printed.
    """
    if len({array_text(values[item]) for item in coordinates[:_MAX_DEVICES]}) > 1:
        return (), DIGITS
    n_axes = len(coordinates[0])
    flat = values.reshape(len(coordinates), *values.shape[n_axes:])
    atol = rounding_tolerance(values, eps) if values.dtype.kind in "fc" else 0.0
    wrong = ~compare_arrays(flat, np.broadcast_to(flat[:1], flat.shape), atol)
    if not wrong.any():
        return (), DIGITS
    # Among the devices that are printed, if one of them differs.
    printed = wrong[:_MAX_DEVICES] if wrong[:_MAX_DEVICES].any() else wrong
    index = tuple(map(int, np.argwhere(printed)[0][1:]))
    texts = {array_text(item[index], 9) for item in flat[:_MAX_DEVICES]}
    return index, 9 if len(texts) > 1 else 17


def _run_eps(run: MeshRun) -> float:
    return max((leaf.lineage.eps for leaf in run.outputs.values()), default=0.0)


def _repeat_first(values: Array, dim: int) -> Array:
    return np.broadcast_to(np.take(values, [0], dim), values.shape)
