"""Outputs declared replicated whose copies differ, and what they would have to become."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from shardlab.checks.agreement import Array, is_close, roundings
from shardlab.checks.codes import finding
from shardlab.records.finding import Finding
from shardlab.records.run import Copies, Run, Runs

_MOST_SHOWN = 8
# What copies may become by -> cause, in words, and the reduction itself; the likeliest first.
_REDUCTIONS: dict[str, tuple[str, str, Callable[..., Array]]] = {
    "psum": ("missing_psum", "add up to", np.sum),
    "pmean": ("missing_pmean", "average to", np.mean),
    "pmax": ("missing_pmax", "have as their largest", np.max),
    "pmin": ("missing_pmin", "have as their smallest", np.min),
}


def differing_replicas(runs: Runs) -> list[Finding]:
    """Return one finding for each output whose copies differ on some mesh."""
    seen: dict[object, list[tuple[Run, Copies]]] = {}
    for run in runs.many:
        for copies in run.copies:
            if differing_axes(copies, _eps(run)):
                seen.setdefault(copies.key, []).append((run, copies))
    return [_finding(runs, each) for each in seen.values()]


def differing_axes(copies: Copies, eps: float) -> tuple[str, ...]:
    """Return the mesh axes along which copies differ by more than the order of a sum does."""
    atol = roundings(copies.values, eps) if copies.values.dtype.kind in "fc" else 0.0
    return tuple(
        name
        for i, name in enumerate(copies.mesh_axes)
        if not is_close(copies.values, _first_along(copies.values, i), atol)
    )


def reduction(copies: Copies, axes: tuple[str, ...], meant: Array, eps: float) -> str:
    """Return the collective over `axes` that makes of the copies what was meant, or nothing.

    >>> from shardlab.records.source import NOWHERE
    >>> copies = Copies(0, 1, "f", NOWHERE, ("data",), np.array([1.0, 2.0, 4.0]))
    >>> reduction(copies, ("data",), np.array(7.0), 1e-7)
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


def by_device(copies: Copies, axes: tuple[str, ...]) -> Array:
    """Return the copies with a leading axis for each of `axes` alone; elsewhere they are equal."""
    index = tuple(slice(None) if name in axes else 0 for name in copies.mesh_axes)
    values: Array = copies.values[index]
    return values


# ------------------------------------------------------------------------------------- in words


def _finding(runs: Runs, seen: list[tuple[Run, Copies]]) -> Finding:
    run, copies = seen[0]
    axes = differing_axes(copies, _eps(run))
    name = _common_reduction(runs, seen)
    over = " and ".join(repr(axis) for axis in axes)
    cause, words, _ = _REDUCTIONS.get(name, ("", "", np.sum))
    written = repr(axes[0]) if len(axes) == 1 else repr(axes)
    if name:
        explained = f" The copies {words} the one-device value: a {name} over {over} is missing."
        fix = f"return jax.lax.{name}(value, {written}), or shard it over {over} in out_specs."
    else:
        explained = ""
        fix = (
            f"make the copies equal (psum or pmean over {over}), or shard it over {over} in "
            "out_specs; with check_vma=True JAX refuses this while tracing."
        )
    return finding(
        "hazard.replicas_differ",
        f"{_output(run, copies)}, declared replicated over {over}, differs between devices."
        + explained,
        copies.source,
        fix,
        cause=cause,
        shows=_shown(run, copies, axes, _meant(runs, run, copies)),
        details={
            "mesh_axes": list(axes),
            "meshes": [run.mesh_text for run, _ in seen],
            "output": _path(run, copies),
        },
    )


def _common_reduction(runs: Runs, seen: list[tuple[Run, Copies]]) -> str:
    """Return the collective that is missing on every mesh, or nothing."""
    names = set()
    for run, copies in seen:
        meant = _meant(runs, run, copies)
        axes = differing_axes(copies, _eps(run))
        names.add("" if meant is None else reduction(copies, axes, meant, _eps(run)))
    return names.pop() if len(names) == 1 else ""


def _meant(runs: Runs, run: Run, copies: Copies) -> Array | None:
    """Return the same output on one device: of the same turn, where it is given more than once."""
    same = [each for each in run.copies if each.key == copies.key]
    turn = next(i for i, each in enumerate(same) if each is copies)
    there = [each for each in runs.one.copies if each.key == copies.key]
    return np.asarray(there[turn].values) if turn < len(there) else None


def _output(run: Run, copies: Copies) -> str:
    path = _path(run, copies)
    if path is not None:
        return f"Output {path} of '{copies.body}'" if path else f"The output of '{copies.body}'"
    which = "The output" if copies.of == 1 else f"Output {copies.number} of {copies.of}"
    return f"{which} of '{copies.body}'"


def _path(run: Run, copies: Copies) -> str | None:
    """Return the path of the program's output that this is: the one with the same numbers."""
    first = copies.values[(0,) * len(copies.mesh_axes)]
    for path, leaf in run.outputs.items():
        if leaf.value.shape == first.shape and is_close(leaf.value, first, 0.0):
            return path
    return None


def _shown(run: Run, copies: Copies, axes: tuple[str, ...], meant: Array | None) -> tuple[str, ...]:
    values = by_device(copies, axes)
    places = list(product(*map(range, values.shape[: len(axes)])))
    lines = [f"on {run.mesh_text}:"]
    for place in places[:_MOST_SHOWN]:
        device = " ".join(f"{name}={i}" for name, i in zip(axes, place, strict=True))
        lines.append(f"  {device}: {short(values[place])}")
    if len(places) > _MOST_SHOWN:
        lines.append(f"  ... and {len(places) - _MOST_SHOWN} more")
    if meant is not None:
        lines.append(f"on one device: {short(meant)}")
    return tuple(lines)


def short(array: Array) -> str:
    """Return an array in one short line."""
    return np.array2string(np.asarray(array), threshold=6, edgeitems=2, precision=5).replace(
        "\n", " "
    )


def _eps(run: Run) -> float:
    return max((leaf.lineage.eps for leaf in run.outputs.values()), default=0.0)


def _first_along(values: Array, axis: int) -> Array:
    return np.broadcast_to(np.take(values, [0], axis), values.shape)
