"""Is a large array held whole by every device?"""

from __future__ import annotations

import math

from shardlab.checks.codes import finding
from shardlab.checks.words import amount, mesh_text
from shardlab.records.finding import Finding
from shardlab.records.observation import Clue, Observation

# Copies below this are the price of plain data parallelism; above it they crowd a device.
REPLICATED_BYTES = 64 * 2**20


def replicated(seen: Observation, at_least: int = REPLICATED_BYTES) -> list[Finding]:
    """Return a finding for each array of `at_least` bytes that is left whole everywhere."""
    return [
        _found(clue)
        for clue in seen.clues
        if clue.kind == "whole_everywhere" and clue.facts["n_bytes"] >= at_least
    ]


def _found(clue: Clue) -> Finding:
    facts = clue.facts
    n_devices = math.prod(size for _, size in facts["mesh"])
    could = [f"array axis {axis} over '{name}'" for name, axis in facts["could"]]
    where = "in_specs" if facts["at"] == "shard_map" else "its sharding"
    return finding(
        "waste.replicated",
        f"'{facts['path']}' of {facts['dtype']}{list(facts['shape'])} is whole on each of "
        f"{n_devices} devices: {amount(facts['n_bytes'])} in every one of them, "
        f"{amount(n_devices * facts['n_bytes'])} in all.",
        clue.source if clue.source.line else None,
        (
            f"shard {' or '.join(could)} in {where}, and gather what is needed when it is needed."
            if could
            else f"pad an array axis so that a mesh axis divides it, and shard it in {where}."
        ),
        shows=(f"mesh {mesh_text(facts['mesh'])}",),
        details={"path": facts["path"], "bytes": facts["n_bytes"]},
    )
