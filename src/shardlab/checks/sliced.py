"""Is a whole result fetched of which one slice is used?"""

from __future__ import annotations

from shardlab.checks.codes import finding
from shardlab.checks.words import amount, as_argument, named
from shardlab.records.finding import Finding
from shardlab.records.observation import Clue, Observation


def gathers_then_slices(seen: Observation) -> list[Finding]:
    """Return a finding for each all-gather of which at most one device's part is used."""
    return [_gather(clue) for clue in seen.clues if clue.kind == "gather_then_slice"]


def psums_then_slices(seen: Observation) -> list[Finding]:
    """Return a finding for each psum of which every device uses its own part."""
    return [_psum(clue) for clue in seen.clues if clue.kind == "psum_then_slice"]


def _gather(clue: Clue) -> Finding:
    facts = clue.facts
    over = named(facts["axes"])
    received = (facts["n"] - 1) * facts["payload_bytes"]
    return finding(
        "waste.gather_then_slice",
        f"all_gather over {over} makes array axis {facts['dimension']} {facts['whole']} long, of "
        f"which {facts['used']} {'is' if facts['used'] == 1 else 'are'} used: each device receives "
        f"{amount(received)} and throws nearly all of it away.",
        clue.source,
        (
            "use the local part as it is; if each device wants the part of another, send just "
            "that with lax.ppermute."
            if facts["by_place"]
            else "send only that part: lax.psum of jnp.where(axis_index == its owner, part, 0), "
            "or a lax.ppermute."
        ),
        shows=(f"the slice: {facts['slice']}",),
        details={"axes": list(facts["axes"]), "whole": facts["whole"], "used": facts["used"]},
    )


def _psum(clue: Clue) -> Finding:
    facts = clue.facts
    over, n = named(facts["axes"]), facts["n"]
    spare = (n - 1) * facts["payload_bytes"] // n
    return finding(
        "waste.psum_then_slice",
        f"psum over {over}, after which each device keeps {facts['used']} of the "
        f"{facts['whole']} along array axis {facts['dimension']}: twice the bytes that are needed, "
        f"{amount(spare)} too many for each device.",
        clue.source,
        f"use lax.psum_scatter(x, {as_argument(facts['axes'])}, scatter_dimension="
        f"{facts['dimension']}, tiled=True): it adds up and leaves each device its own part.",
        shows=(f"the slice: {facts['slice']}",),
        details={"axes": list(facts["axes"]), "whole": facts["whole"], "used": facts["used"]},
    )
