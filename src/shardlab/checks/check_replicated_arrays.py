"""Is a large array held whole by every device?

Does a constraint ask for shards that the compiler does not make?

Measured: under jit JAX 0.10 leaves such an array axis whole on every device; 0.12 splits it into as
many equal shards as there can be, and refuses only if the array is an output. Neither says a word.
(A jit's own in_shardings and out_shardings are refused by both.)

Is something summed that is the same on every device, and so multiplied?
"""

from __future__ import annotations

import math

from shardlab.checks.check_codes import amount, finding, mesh_text, named
from shardlab.findings.finding import Finding
from shardlab.tracing.observation import Observation, ProgramPattern

# Copies below this are the price of plain data parallelism; above it they crowd a device.
REPLICATED_BYTES = 64 * 2**20


def replicated(seen: Observation, at_least: int = REPLICATED_BYTES) -> list[Finding]:
    """Return a finding for each array of `at_least` bytes that is left whole everywhere."""
    return [
        _found(clue)
        for clue in seen.clues
        if clue.kind == "whole_everywhere" and clue.facts["n_bytes"] >= at_least
    ]


def _found(clue: ProgramPattern) -> Finding:
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


def uneven_constraints(seen: Observation) -> list[Finding]:
    """Return a finding for each constraint that does not divide its array axis."""
    return [
        _found_constraint_replicates(clue)
        for clue in seen.clues
        if clue.kind == "uneven_constraint"
    ]


def _found_constraint_replicates(clue: ProgramPattern) -> Finding:
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


def sums_of_copies(seen: Observation) -> list[Finding]:
    """Return a finding for each psum that multiplies by the number of copies."""
    return [_found_psum_unvarying(clue) for clue in seen.clues if clue.kind == "sum_of_copies"]


def _found_psum_unvarying(clue: ProgramPattern) -> Finding:
    axes, n = clue.facts["axes"], clue.facts["n"]
    over = named(axes)
    also = named([axis for axis in clue.facts["over"] if axis not in axes])
    rest = f" (it is over {also} too, along which the value differs)" if also else ""
    return finding(
        "hazard.psum_of_replicated",
        f"psum over {over} of a value that is the same along {over}: {n} equal copies are added "
        f"up, which multiplies it by {n}{rest}.",
        clue.source,
        f"leave {over} out of the psum; if a mean is meant, use lax.pmean; if the value should "
        f"differ along {over}, shard it there in in_specs.",
        details={"axes": list(axes), "n": n},
    )
