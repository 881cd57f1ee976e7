"""Does a ppermute name its mesh axes in an order that JAX ignores?"""

from __future__ import annotations

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
    axes, ordered = clue.facts["axes"], clue.facts["mesh_order"]
    return finding(
        "hazard.ppermute_order",
        f"ppermute over ({named(axes)}), while the order of the mesh is ({named(ordered)}). "
        f"{_RULES[clue.facts['rule']]}",
        clue.source,
        f"write ({named(ordered)}) and number the devices of its pairs in that order: the last "
        "axis counts fastest.",
        details={"axes": list(axes), "mesh_order": list(ordered)},
    )
