"""Does a ppermute name its mesh axes in an order that JAX ignores?"""

from __future__ import annotations

from dataclasses import replace

from shardlab.checks.codes import finding
from shardlab.checks.words import named
from shardlab.records.finding import Finding
from shardlab.records.observation import Clue, Observation

_RULES = {
    "mesh": "This JAX ignores that and numbers the devices in the order of the mesh, so its pairs "
    "may name other devices than meant.",
    "refused": "This JAX refuses that when it compiles, and older ones ignore the order.",
    "written": "This JAX does as written, and older ones ignore the order.",
}


def ppermute_orders(seen: Observation) -> list[Finding]:
    """Return a finding for each ppermute whose order of axes is not the mesh's."""
    return [_found(clue) for clue in seen.clues if clue.kind == "ppermute_order"]


def _found(clue: Clue) -> Finding:
    axes, ordered, rule = clue.facts["axes"], clue.facts["mesh_order"], clue.facts["rule"]
    found = finding(
        "hazard.ppermute_order",
        f"ppermute over ({named(axes)}), while the order of the mesh is ({named(ordered)}). "
        f"{_RULES[rule]}",
        clue.source,
        f"write ({named(ordered)}) and number the devices of its pairs in that order: the last "
        "axis counts fastest.",
        details={"axes": list(axes), "mesh_order": list(ordered)},
    )
    # What is refused never runs: said once, here, and not by running it as well.
    return replace(found, severity="error") if rule == "refused" else found
