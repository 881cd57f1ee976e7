"""Is there anything to check at all?"""

from __future__ import annotations

from shardlab.checks.codes import finding
from shardlab.records.finding import Finding
from shardlab.records.observation import Observation


def nothing_to_check(seen: Observation) -> list[Finding]:
    """Return a finding if the program maps nothing over a mesh and shards no array."""
    if seen.calls or not any(clue.kind == "nothing_sharded" for clue in seen.clues):
        return []
    return [
        finding(
            "program.no_communication",
            f"'{seen.program}' has no shard_map and shards no array: every device would do the "
            "same, and there is nothing to check.",
            None,
            "check the function that calls jax.shard_map, or give arguments with a NamedSharding.",
        )
    ]
