"""Does a collective in a loop give the same in every turn?"""

from __future__ import annotations

from shardlab.checks.codes import finding
from shardlab.checks.words import amount, named
from shardlab.records.finding import Finding
from shardlab.records.observation import Clue, Observation


def loop_invariants(seen: Observation) -> list[Finding]:
    """Return a finding for each collective that could stand before its loop."""
    return [_found(clue) for clue in seen.clues if clue.kind == "same_each_turn"]


def _found(clue: Clue) -> Finding:
    facts = clue.facts
    length, sent = facts["length"], facts["wire_bytes"]
    often = f"{length} times" if length is not None else "in every turn"
    cost = (
        f"{amount(length * sent)} instead of {amount(sent)} sent by each device"
        if length is not None
        else f"{amount(sent)} sent by each device in every turn"
    )
    return finding(
        "waste.loop_invariant",
        f"{facts['op']} over {named(facts['axes'])} of {facts['dtype']}{list(facts['shape'])} is "
        f"called {often} with the same operand: {cost}.",
        clue.source,
        "call it once before the loop and use its result inside; leave it where it is if the "
        "result is too large to keep.",
        shows=(f"the loop: {facts['loop']}",),
        details={"op": facts["op"], "axes": list(facts["axes"]), "length": length},
    )
