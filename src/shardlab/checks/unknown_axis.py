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
    words = clue.facts["words"].strip().splitlines()
    verb = "name" if by.endswith("specs") else "names"
    return finding(
        "spec.unknown_axis",
        f"{by[:1].upper() + by[1:] if by.startswith('the') else by} {verb} mesh axis '{axis}', "
        "which this mesh does not have.",
        clue.source,
        f"{mesh}; did you mean '{close[0]}'?" if close else f"{mesh}; name one of its axes.",
        shows=(f"JAX: {words[0]}",) if words and clue.facts["error"] != "UnboundAxis" else (),
        details={"axis": axis, "mesh": dict(known)},
    )
