"""Outputs declared replicated whose copies differ, and what they would have to become."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np

from shardlab.checks.check_codes import count, finding
from shardlab.checks.tolerance import Array, is_close, roundings
from shardlab.findings.finding import Finding
from shardlab.simulator.run_records import MeshRun, MeshRuns, ReplicaValues

_MOST_SHOWN = 8
_MOST_NAMED = 6
# What copies may become by -> cause, in words, and the reduction itself; the likeliest first.
_REDUCTIONS: dict[str, tuple[str, str, Callable[..., Array]]] = {
    "psum": ("missing_psum", "add up to", np.sum),
    "pmean": ("missing_pmean", "average to", np.mean),
    "pmax": ("missing_pmax", "have as their largest", np.max),
    "pmin": ("missing_pmin", "have as their smallest", np.min),
}


@dataclass(frozen=True)
class _Output:
    """An output whose copies differ: on which meshes, along which axes, and what is missing."""

    seen: list[tuple[MeshRun, ReplicaValues]]
    axes: tuple[str, ...]
    missing: str  # the collective that makes them what was meant, where one does


def differing_replicas(runs: MeshRuns) -> list[Finding]:
    """Return one finding for the outputs of a shard_map whose copies differ for the same reason.

    Outputs for which no reason can be told, such as weights that a wrong gradient has moved, go
    with the first that has one.
    """
    seen: dict[object, list[tuple[MeshRun, ReplicaValues]]] = {}
    for run in runs.many:
        for copies in run.copies:
            if differing_axes(copies, _eps(run)):
                seen.setdefault(copies.key, []).append((run, copies))
    groups: dict[object, list[_Output]] = {}
    for each in seen.values():
        run, copies = each[0]
        axes = differing_axes(copies, _eps(run))
        output = _Output(each, axes, _common_reduction(runs, each))
        groups.setdefault((copies.source, copies.body, axes), []).append(output)
    return [_finding(runs, each) for group in groups.values() for each in _by_reason(group)]


def _by_reason(group: list[_Output]) -> list[list[_Output]]:
    ordered = sorted(group, key=lambda output: output.seen[0][1].number)
    named: dict[str, list[_Output]] = {}
    for output in ordered:
        if output.missing:
            named.setdefault(output.missing, []).append(output)
    unnamed = [output for output in ordered if not output.missing]
    if not named:
        return [unnamed]
    first, *rest = named.values()
    return [[*first, *unnamed], *rest]


def differing_axes(copies: ReplicaValues, eps: float) -> tuple[str, ...]:
    """Return the mesh axes along which copies differ by more than the order of a sum does."""
    atol = roundings(copies.values, eps) if copies.values.dtype.kind in "fc" else 0.0
    return tuple(
        name
        for i, name in enumerate(copies.mesh_axes)
        if not is_close(copies.values, _first_along(copies.values, i), atol)
    )


def missing_reduction(
    copies: ReplicaValues, axes: tuple[str, ...], meant: Array, eps: float
) -> str:
    """Return the collective over `axes` that makes of the copies what was meant, or nothing.

    >>> from shardlab.findings.source import UNKNOWN_LOCATION
    >>> copies = ReplicaValues(0, 1, "f", NOWHERE, ("data",), np.array([1.0, 2.0, 4.0]))
    >>> missing_reduction(copies, ("data",), np.array(7.0), 1e-7)
    'psum'
    """
    values = by_device(copies, axes)
    over = tuple(range(len(axes)))
    if values.dtype.kind not in "fciu" or meant.shape != values.shape[len(axes) :]:
        return ""
    for name, (_, _, reduce) in _REDUCTIONS.items():
        if values.dtype.kind == "c" and name in ("pmax", "pmin"):
            continue
        # Of the copies, whose sum may be much smaller than they are.
        atol = roundings(np.append(meant, values).astype(values.dtype), eps)
        if is_close(np.asarray(reduce(values, axis=over)), meant, atol):
            return name
    return ""


def by_device(copies: ReplicaValues, axes: tuple[str, ...]) -> Array:
    """Return the copies with a leading axis for each of `axes` alone; elsewhere they are equal."""
    index = tuple(slice(None) if name in axes else 0 for name in copies.mesh_axes)
    values: Array = copies.values[index]
    return values


# ------------------------------------------------------------------------------------- in words


def _finding(runs: MeshRuns, outputs: list[_Output]) -> Finding:
    first, *others = outputs
    run, copies = first.seen[0]
    over = " and ".join(repr(axis) for axis in first.axes)
    explained, fix = _advice(runs, first, over)
    more = f" and {count(len(others), 'more output')}" if others else ""
    verb = "differ" if others else "differs"
    shows = _shown(run, copies, first.axes, _meant(runs, run, copies), runs.reference)
    if others:
        paths = [path for path in (_path(*each.seen[0]) for each in others) if path]
        named = ", ".join(paths[:_MOST_NAMED])
        rest = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
        shows += (f"the others: {named}{rest}",) if paths else ()
    return finding(
        "hazard.replicas_differ",
        f"{_output(run, copies)}{more}, declared replicated over {over}, {verb} between devices."
        + explained,
        copies.source,
        fix,
        cause=_REDUCTIONS[first.missing][0] if first.missing else "",
        shows=shows,
        details={
            "mesh_axes": list(first.axes),
            "meshes": [run.mesh_text for run, _ in first.seen],
            "output": _path(run, copies),
            "outputs": [_path(*each.seen[0]) for each in outputs],
        },
    )


def _advice(runs: MeshRuns, first: _Output, over: str) -> tuple[str, str]:
    """Return what the copies would become by the collective that is missing, and what to try."""
    run, copies = first.seen[0]
    written = repr(first.axes[0]) if len(first.axes) == 1 else repr(first.axes)
    name = first.missing
    if not name:
        return "", (
            f"make the copies equal (psum or pmean over {over}), or shard it over {over} in "
            "out_specs; with check_vma=True JAX refuses this while tracing."
        )
    words = _REDUCTIONS[name][1]
    explained = f" The copies {words} the one-device value: a {name} over {over} is missing."
    path = _path(run, copies)
    if path is not None and run.outputs[path].lineage.is_gradient:
        return explained, (
            f"take jax.lax.{name}(gradients, {written}) before they are used or returned; with "
            "check_vma=True JAX refuses this while tracing."
        )
    return explained, (
        f"return jax.lax.{name}(value, {written}), or shard it over {over} in out_specs."
    )


def _common_reduction(runs: MeshRuns, seen: list[tuple[MeshRun, ReplicaValues]]) -> str:
    """Return the collective that is missing on every mesh, or nothing."""
    names = set()
    for run, copies in seen:
        meant = _meant(runs, run, copies)
        axes = differing_axes(copies, _eps(run))
        names.add("" if meant is None else missing_reduction(copies, axes, meant, _eps(run)))
    return names.pop() if len(names) == 1 else ""


def _meant(runs: MeshRuns, run: MeshRun, copies: ReplicaValues) -> Array | None:
    """Return the same output on one device: of the same turn, where it is given more than once."""
    if runs.not_one:
        return None
    same = [each for each in run.copies if each.key == copies.key]
    turn = next(i for i, each in enumerate(same) if each is copies)
    there = [each for each in runs.one.copies if each.key == copies.key]
    return np.asarray(there[turn].values) if turn < len(there) else None


def _output(run: MeshRun, copies: ReplicaValues) -> str:
    path = _path(run, copies)
    if path is not None:
        return f"Output {path} of '{copies.body}'" if path else f"The output of '{copies.body}'"
    which = "The output" if copies.of == 1 else f"Output {copies.number} of {copies.of}"
    return f"{which} of '{copies.body}'"


def _path(run: MeshRun, copies: ReplicaValues) -> str | None:
    """Return the path of the program's output that this is: the one with the same numbers."""
    first = copies.values[(0,) * len(copies.mesh_axes)]
    for path, leaf in run.outputs.items():
        if leaf.value.shape == first.shape and is_close(leaf.value, first, 0.0):
            return path
    return None


def _shown(
    run: MeshRun, copies: ReplicaValues, axes: tuple[str, ...], meant: Array | None, reference: str
) -> tuple[str, ...]:
    values = by_device(copies, axes)
    places = list(product(*map(range, values.shape[: len(axes)])))
    lines = [f"on {run.mesh_text}:"]
    for place in places[:_MOST_SHOWN]:
        device = " ".join(f"{name}={i}" for name, i in zip(axes, place, strict=True))
        lines.append(f"  {device}: {short(values[place])}")
    if len(places) > _MOST_SHOWN:
        lines.append(f"  ... and {len(places) - _MOST_SHOWN} more")
    if meant is not None:
        lines.append(f"on {reference}: {short(meant)}")
    return tuple(lines)


def short(array: Array, digits: int = 5) -> str:
    """Return an array in one short line.

    >>> short(np.arange(12.0).reshape(3, 4) / 7)
    '[[0. ... 0.42857] ... [1.14286 ... 1.57143]]'
    """
    array = np.asarray(array)
    edge = 2 if array.ndim < 2 else 1
    told = np.array2string(array, threshold=6, edgeitems=edge, precision=digits)
    return " ".join(told.split()).replace("[ ", "[").replace(" ]", "]")


def _eps(run: MeshRun) -> float:
    return max((leaf.lineage.eps for leaf in run.outputs.values()), default=0.0)


def _first_along(values: Array, axis: int) -> Array:
    return np.broadcast_to(np.take(values, [0], axis), values.shape)
