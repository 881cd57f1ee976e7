"""Is something summed that is the same on every device, and so multiplied?"""

from __future__ import annotations

from shardlab.checks.codes import finding
from shardlab.checks.words import named
from shardlab.records.finding import Finding
from shardlab.records.observation import Clue, Observation


def sums_of_copies(seen: Observation) -> list[Finding]:
    """Return a finding for each psum that multiplies by the number of copies."""
    return [_found(clue) for clue in seen.clues if clue.kind == "sum_of_copies"]


def _found(clue: Clue) -> Finding:
    axes, n = clue.facts["axes"], clue.facts["n"]
    over = named(axes)
    also = named([axis for axis in clue.facts["over"] if axis not in axes])
    rest = f" (it is over {also} too, along which the value differs)" if also else ""
    return finding(
        "hazard.psum_unvarying",
        f"psum over {over} of a value that is the same along {over}: {n} equal copies are added "
        f"up, which multiplies it by {n}{rest}.",
        clue.source,
        f"leave {over} out of the psum; if a mean is meant, use lax.pmean; if the value should "
        f"differ along {over}, shard it there in in_specs.",
        details={"axes": list(axes), "n": n},
    )
