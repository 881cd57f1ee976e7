"""Is a whole result fetched of which one slice is used?

Does a collective in a loop give the same in every turn?

Is there anything to check at all?

Does a ppermute name its mesh axes in an order that JAX ignores?
"""

from __future__ import annotations

from dataclasses import replace

from shardlab.checks.check_codes import amount, as_argument, finding, named
from shardlab.findings.finding import Finding
from shardlab.tracing.observation import Observation, ProgramPattern


def gathers_then_slices(seen: Observation) -> list[Finding]:
    """Return a finding for each all-gather of which at most one device's part is used."""
    return [_gather(clue) for clue in seen.clues if clue.kind == "gather_then_slice"]


def psums_then_slices(seen: Observation) -> list[Finding]:
    """Return a finding for each psum of which every device uses its own part."""
    return [_psum(clue) for clue in seen.clues if clue.kind == "psum_then_slice"]


def _gather(clue: ProgramPattern) -> Finding:
    facts = clue.facts
    over = named(facts["axes"])
    received = (facts["n"] - 1) * facts["payload_bytes"]
    return finding(
        "waste.all_gather_then_slice",
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


def _psum(clue: ProgramPattern) -> Finding:
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


def loop_invariants(seen: Observation) -> list[Finding]:
    """Return a finding for each collective that could stand before its loop."""
    return [_found(clue) for clue in seen.clues if clue.kind == "same_each_turn"]


def _found(clue: ProgramPattern) -> Finding:
    facts = clue.facts
    length, sent = facts["length"], facts["wire_bytes"]
    often = f"{length} times" if length is not None else "in every turn"
    cost = (
        f"{amount(length * sent)} instead of {amount(sent)} sent by each device"
        if length is not None
        else f"{amount(sent)} sent by each device in every turn"
    )
    return finding(
        "waste.loop_invariant_collective",
        f"{facts['op']} over {named(facts['axes'])} of {facts['dtype']}{list(facts['shape'])} is "
        f"called {often} with the same operand: {cost}.",
        clue.source,
        "call it once before the loop and use its result inside; leave it where it is if the "
        "result is too large to keep.",
        shows=(f"the loop: {facts['loop']}",),
        details={"op": facts["op"], "axes": list(facts["axes"]), "length": length},
    )


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


_RULES = {
    "mesh": "This JAX ignores that and numbers the devices in the order of the mesh, so its pairs "
    "may name other devices than meant.",
    "refused": "This JAX refuses that when it compiles, and older ones ignore the order.",
    "written": "This JAX does as written, and older ones ignore the order.",
}


def ppermute_orders(seen: Observation) -> list[Finding]:
    """Return a finding for each ppermute whose order of axes is not the mesh's."""
    return [_found_ppermute_order(clue) for clue in seen.clues if clue.kind == "ppermute_order"]


def _found_ppermute_order(clue: ProgramPattern) -> Finding:
    axes, ordered, rule = clue.facts["axes"], clue.facts["mesh_order"], clue.facts["rule"]
    found = finding(
        "hazard.ppermute_axis_order",
        f"ppermute over ({named(axes)}), while the order of the mesh is ({named(ordered)}). "
        f"{_RULES[rule]}",
        clue.source,
        f"write ({named(ordered)}) and number the devices of its pairs in that order: the last "
        "axis counts fastest.",
        details={"axes": list(axes), "mesh_order": list(ordered)},
    )
    # What is refused never runs: said once, here, and not by running it as well.
    return replace(found, severity="error") if rule == "refused" else found
