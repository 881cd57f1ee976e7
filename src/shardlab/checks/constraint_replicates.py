"""Does a constraint ask for shards that the compiler does not make?

Measured: under jit JAX 0.10 leaves such an array axis whole on every device; 0.12 splits it into as
many equal shards as there can be, and refuses only if the array is an output. Neither says a word.
(A jit's own in_shardings and out_shardings are refused by both.)
"""

from __future__ import annotations

from shardlab.checks.codes import finding
from shardlab.checks.words import named
from shardlab.records.finding import Finding
from shardlab.records.observation import Clue, Observation


def uneven_constraints(seen: Observation) -> list[Finding]:
    """Return a finding for each constraint that does not divide its array axis."""
    return [_found(clue) for clue in seen.clues if clue.kind == "uneven_constraint"]


def _found(clue: Clue) -> Finding:
    facts = clue.facts
    size, n, possible = facts["size"], facts["n"], facts["possible"]
    instead = (
        "every device keeps all of it"
        if possible == 1
        else f"every device keeps all of it (JAX 0.10) or one of {possible} parts (JAX 0.12)"
    )
    return finding(
        "hazard.constraint_replicates",
        f"A constraint asks for {n} shards over {named(facts['axes'])} of array axis "
        f"{facts['axis']}, whose size {size} they do not divide: {instead}, without a word.",
        clue.source,
        f"pad array axis {facts['axis']} to {-(-size // n) * n}, constrain another one, or leave "
        "the constraint out.",
        shows=(f"shape {tuple(facts['shape'])}",),
        details={"axis": facts["axis"], "size": size, "shards": n},
    )
