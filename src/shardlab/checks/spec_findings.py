"""Does each spec fit the array it is given for, or only another one's?

Does something name a mesh axis that does not exist?
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

from shardlab.checks.check_codes import finding, mesh_text, named
from shardlab.findings.finding import Finding
from shardlab.tracing.observation import ProgramPattern

Entries = Sequence[Sequence[str]]


def misfits(clue: ProgramPattern) -> Finding:
    """Return the finding for specs that JAX has refused."""
    facts = clue.facts
    if facts["family"] == "rank":
        return _too_long(clue, facts["owner"], facts["spec"], facts["length"], facts["rank"])
    if facts["family"] == "indivisible":
        over = f"{facts['n']} shards"
        return _indivisible(clue, facts["owner"], facts["shape"], facts, over, facts["spec"])
    if facts["exchanged"] is not None:
        return _wrong_argument(clue, *(facts["arguments"][n] for n in facts["exchanged"]))
    return _of_argument(clue)


def _fits(shape: Sequence[int], spec: Entries, sizes: Mapping[str, int]) -> bool:
    return len(spec) <= len(shape) and all(
        size % math.prod(sizes.get(axis, 1) for axis in axes) == 0
        for size, axes in zip(shape, spec, strict=False)
    )


def _wrong_argument(clue: ProgramPattern, a: Mapping[str, Any], b: Mapping[str, Any]) -> Finding:
    sizes = dict(clue.facts["mesh"])
    wrong, other = (a, b) if not _fits(a["shape"], a["spec"], sizes) else (b, a)
    given, others = shown(wrong["spec"]), shown(other["spec"])
    return finding(
        "spec.wrong_argument",
        f"The spec {given} does not fit '{wrong['path']}' of shape {_shape(wrong['shape'])}. With "
        f"the specs of '{wrong['path']}' and '{other['path']}' exchanged, JAX accepts the program.",
        clue.source,
        f"give '{other['path']}' the spec {given} and '{wrong['path']}' the spec {others}: "
        f"in_specs are in the order of the parameters of '{clue.facts['function']}'.",
        shows=(f"mesh {mesh_text(clue.facts['mesh'])}",),
        details={"argument": wrong["path"], "fits": other["path"]},
    )


def _of_argument(clue: ProgramPattern) -> Finding:
    sizes = dict(clue.facts["mesh"])
    bad = [a for a in clue.facts["arguments"] if not _fits(a["shape"], a["spec"], sizes)]
    first = bad[0]
    path, shape, spec = first["path"], first["shape"], first["spec"]
    more = [f"'{a['path']}' {_shape(a['shape'])} with {shown(a['spec'])}" for a in bad[1:]]
    also = ("does not fit either: " + "; ".join(more[:3]),) if more else ()
    if len(spec) > len(shape):
        return _too_long(clue, f"'{path}'", shown(spec), len(spec), len(shape), also)
    axis, axes = next(
        (n, axes)
        for n, axes in enumerate(spec)
        if shape[n] % math.prod(sizes.get(name, 1) for name in axes)
    )
    n = math.prod(sizes[name] for name in axes)
    facts = {"axis": axis, "size": shape[axis], "n": n}
    over = f"{n} shards over {named(axes)}"
    return _indivisible(clue, f"'{path}'", shape, facts, over, shown(spec), also)


def _indivisible(
    clue: ProgramPattern,
    owner: str,
    shape: Sequence[int],
    facts: Mapping[str, Any],
    over: str,
    spec: str,
    also: tuple[str, ...] = (),
) -> Finding:
    axis, size, n = facts["axis"], facts["size"], facts["n"]
    below, above = size // n * n, -(-size // n) * n
    return finding(
        "spec.indivisible",
        f"Array axis {axis} of {owner} has size {size}, which {over} cannot split evenly.",
        clue.source,
        f"pad it to {above}" + (f" or cut it to {below}" if below else "") + ", shard another "
        "array axis, or leave it whole.",
        shows=(
            f"shape {_shape(shape)}, spec {spec}"
            + (f", mesh {mesh_text(clue.facts['mesh'])}" if "mesh" in clue.facts else ""),
            *also,
        ),
        details={"axis": axis, "size": size, "shards": n, "nearest": [below, above]},
    )


def _too_long(
    clue: ProgramPattern, owner: str, spec: str, length: int, rank: int, also: tuple[str, ...] = ()
) -> Finding:
    axes = {0: "no array axes (it is a scalar)", 1: "1 array axis"}.get(rank, f"{rank} array axes")
    entries = "1 entry" if length == 1 else f"{length} entries"
    return finding(
        "spec.rank",
        f"The spec {spec.replace(',)', ')')} has {entries}, and {owner} has {axes}.",
        clue.source,
        "use P()."
        if rank == 0
        else f"give at most {rank} entr{'y' if rank == 1 else 'ies'}, one for each array axis.",
        shows=also,
        details={"length": length, "rank": rank},
    )


def shown(spec: Entries) -> str:
    """Return a spec as a person writes it.

    >>> shown([["data"], [], ["data", "model"]])
    "P('data', None, ('data', 'model'))"
    """
    entries = [
        "None" if not axes else f"'{axes[0]}'" if len(axes) == 1 else f"({named(axes)})"
        for axes in spec
    ]
    return f"P({', '.join(entries)})"


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"


def unknown_axis(clue: ProgramPattern) -> Finding:
    """Return the finding, with the name that is nearest."""
    axis, known, by = clue.facts["axis"], clue.facts["known"], clue.facts["asked_by"]
    names = [name for name, _ in known]
    close = difflib.get_close_matches(axis, names, n=1, cutoff=0.5)
    mesh = f"the mesh is {mesh_text(known)}" if known else "this mesh does not have it"
    shows = () if clue.facts["error"] == "UnboundAxis" else _told(clue.facts["words"], axis)
    verb = "name" if by.endswith("specs") else "names"
    return finding(
        "spec.unknown_axis",
        f"{by[:1].upper() + by[1:] if by.startswith('the') else by} {verb} mesh axis '{axis}', "
        "which this mesh does not have.",
        clue.source,
        f"{mesh}; did you mean '{close[0]}'?"
        if close
        else f"{mesh}; name one of its axes, or give a mesh that has this one too.",
        shows=shows,
        details={"axis": axis, "mesh": dict(known)},
    )


def _told(words: str, axis: str) -> tuple[str, ...]:
    """Return JAX's first line, and the one that names the axis if that is another."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    named = [line for line in lines[1:] if repr(axis) in line and repr(axis) not in lines[0]]
    return tuple(
        f"{'     ' if n else 'JAX: '}{line}" for n, line in enumerate([*lines[:1], *named[:1]])
    )
