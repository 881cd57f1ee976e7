"""Does something name a mesh axis that does not exist?"""

from __future__ import annotations

import difflib

from shardlab.checks.codes import finding
from shardlab.checks.words import mesh_text
from shardlab.records.finding import Finding
from shardlab.records.observation import Clue


def unknown_axis(clue: Clue) -> Finding:
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
