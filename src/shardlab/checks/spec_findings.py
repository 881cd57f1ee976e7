"""Findings about specs that JAX rejects: unknown mesh axis, rank, divisibility, wrong argument."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from shardlab._text.nearest import nearest_name
from shardlab.checks.check_codes import make_finding, quote_axes
from shardlab.findings.finding import Finding
from shardlab.sharding.mesh import mesh_text
from shardlab.tracing.observation import ProgramPattern

# For each dimension the mesh axes that shard it.
SpecEntries = Sequence[Sequence[str]]


def spec_finding(pattern: ProgramPattern) -> Finding:
    """Return the finding for a spec that does not fit its array."""
    facts = pattern.facts
    if facts["family"] == "rank":
        return _rank_finding(
            pattern, facts["owner"], facts["spec"], length=facts["length"], rank=facts["rank"]
        )
    if facts["family"] == "indivisible":
        return _indivisible_finding(pattern, facts["owner"], facts["shape"], facts, facts["spec"])
    if facts["swappable"] is not None:
        first, second = (facts["arguments"][number] for number in facts["swappable"])
        return _wrong_argument_finding(pattern, first, second)
    return _argument_finding(pattern)


def _is_shardable(shape: Sequence[int], spec: SpecEntries, sizes: Mapping[str, int]) -> bool:
    return len(spec) <= len(shape) and all(
        size % _shard_count(axes, sizes) == 0 for size, axes in zip(shape, spec, strict=False)
    )


def _shard_count(axes: Sequence[str], sizes: Mapping[str, int]) -> int:
    return math.prod(sizes.get(axis, 1) for axis in axes)


def _wrong_argument_finding(
    pattern: ProgramPattern, first: Mapping[str, Any], second: Mapping[str, Any]
) -> Finding:
    sizes = dict(pattern.facts["mesh"])
    # At least one of the two does not fit its own spec, or JAX would not have rejected it.
    wrong, fitting = first, second
    if _is_shardable(first["shape"], first["spec"], sizes):
        wrong, fitting = second, first
    spec, fitting_spec = spec_text(wrong["spec"]), spec_text(fitting["spec"])
    return make_finding(
        "spec.wrong_argument",
        f"The spec {spec} does not fit '{wrong['path']}' of shape {_shape_text(wrong['shape'])}. "
        f"If the specs of '{wrong['path']}' and '{fitting['path']}' are swapped, JAX accepts the "
        "program.",
        pattern.source,
        f"give '{fitting['path']}' the spec {spec} and '{wrong['path']}' the spec {fitting_spec}: "
        f"in_specs are in the order of the parameters of '{pattern.facts['function']}'.",
        shows=(f"mesh {mesh_text(pattern.facts['mesh'])}",),
        details={"argument": wrong["path"], "fits": fitting["path"]},
    )


def _argument_finding(pattern: ProgramPattern) -> Finding:
    """Return the finding for the first argument of a shard_map whose spec does not fit."""
    sizes = dict(pattern.facts["mesh"])
    first, *others = [
        argument
        for argument in pattern.facts["arguments"]
        if not _is_shardable(argument["shape"], argument["spec"], sizes)
    ]
    path, shape, spec = first["path"], first["shape"], first["spec"]
    texts = [
        f"'{argument['path']}' {_shape_text(argument['shape'])} with {spec_text(argument['spec'])}"
        for argument in others
    ]
    also = ("does not fit either: " + "; ".join(texts[:3]),) if texts else ()
    if len(spec) > len(shape):
        return _rank_finding(
            pattern,
            f"'{path}'",
            spec_text(spec),
            length=len(spec),
            rank=len(shape),
            also=also,
        )
    dim = next(dim for dim, axes in enumerate(spec) if shape[dim] % _shard_count(axes, sizes))
    facts = {"dim": dim, "size": shape[dim], "n": _shard_count(spec[dim], sizes)}
    return _indivisible_finding(
        pattern, f"'{path}'", shape, facts, spec_text(spec), axes=spec[dim], also=also
    )


def _indivisible_finding(
    pattern: ProgramPattern,
    owner: str,
    shape: Sequence[int],
    facts: Mapping[str, Any],
    spec: str,
    *,
    axes: Sequence[str] = (),
    also: tuple[str, ...] = (),
) -> Finding:
    dim, size, n_shards = facts["dim"], facts["size"], facts["n"]
    # The nearest divisible sizes; below 1 shard there is none.
    below, above = size // n_shards * n_shards, -(-size // n_shards) * n_shards
    noun = "mesh axis" if len(axes) == 1 else "mesh axes"
    return make_finding(
        "spec.indivisible",
        f"Dimension {dim} of {owner} has size {size}, which is not divisible by {n_shards}"
        + (f" ({noun} {quote_axes(axes)})." if axes else " shards."),
        pattern.source,
        f"pad it to {above}"
        + (f" or truncate it to {below}" if below else "")
        + ", shard another dimension, or replicate it (None).",
        shows=(
            f"shape {_shape_text(shape)}, spec {spec}"
            + (f", mesh {mesh_text(pattern.facts['mesh'])}" if "mesh" in pattern.facts else ""),
            *also,
        ),
        details={"axis": dim, "size": size, "shards": n_shards, "nearest": [below, above]},
    )


def _rank_finding(
    pattern: ProgramPattern,
    owner: str,
    spec: str,
    *,
    length: int,
    rank: int,
    also: tuple[str, ...] = (),
) -> Finding:
    dims = {0: "no dimensions (it is a scalar)", 1: "1 dimension"}.get(rank, f"{rank} dimensions")
    entries = "1 entry" if length == 1 else f"{length} entries"
    return make_finding(
        "spec.rank",
        f"The spec {spec.replace(',)', ')')} has {entries}, but {owner} has {dims}.",
        pattern.source,
        "use P()."
        if rank == 0
        else f"give at most {rank} entr{'y' if rank == 1 else 'ies'}, one per dimension.",
        shows=also,
        details={"length": length, "rank": rank},
    )


def spec_text(spec: SpecEntries) -> str:
    """Return a spec as it is written in a program.

    >>> spec_text([["data"], [], ["data", "model"]])
    "P('data', None, ('data', 'model'))"
    """
    entries = [
        "None" if not axes else f"'{axes[0]}'" if len(axes) == 1 else f"({quote_axes(axes)})"
        for axes in spec
    ]
    return f"P({', '.join(entries)})"


def _shape_text(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def unknown_axis_finding(pattern: ProgramPattern) -> Finding:
    """Return the finding for a mesh axis that does not exist, with the nearest name."""
    facts = pattern.facts
    axis, mesh, user = facts["axis"], facts["mesh"], facts["used_by"]
    suggestion = nearest_name(axis, [name for name, _ in mesh])
    mesh_description = f"the mesh is {mesh_text(mesh)}" if mesh else "this mesh does not have it"
    lines = () if facts["error"] == "UnboundAxis" else _axis_message_lines(facts["message"], axis)
    verb = "name" if user.endswith("specs") else "names"
    # in_specs and psum are identifiers, which keep their case at the start of a sentence.
    subject = user[:1].upper() + user[1:] if user.startswith(("the ", "a ")) else user
    return make_finding(
        "spec.unknown_axis",
        f"{subject} {verb} mesh axis '{axis}', which does not exist on this mesh.",
        pattern.source,
        f"{mesh_description}. Did you mean '{suggestion}'?"
        if suggestion
        else f"{mesh_description}; use one of its axes, or a mesh that has '{axis}' too.",
        shows=lines,
        details={"axis": axis, "mesh": dict(mesh)},
    )


def _axis_message_lines(message: str, axis: str) -> tuple[str, ...]:
    """Return the first line of JAX's message, and the line that names the axis if it differs."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    naming = [line for line in lines[1:] if repr(axis) in line and repr(axis) not in lines[0]]
    return tuple(
        f"{'     ' if number else 'JAX: '}{line}"
        for number, line in enumerate([*lines[:1], *naming[:1]])
    )
