"""Communication that a program does not need, and collectives that do not do what they say.

An all_gather or psum of which only a slice is used, a collective with the same operand in every
loop iteration, a ppermute whose axis order JAX ignores, a program that communicates nothing.
"""

from __future__ import annotations

from dataclasses import replace

from shardlab._text.units import bytes_text
from shardlab.checks.check_codes import axes_argument, make_finding, quote_axes
from shardlab.findings.finding import Finding
from shardlab.tracing.observation import Observation, ProgramPattern


def find_all_gather_then_slice(observation: Observation) -> list[Finding]:
    """Return a finding for each all_gather of which at most one device's shard is used."""
    patterns = observation.patterns_of("all_gather_then_slice")
    return [_all_gather_finding(pattern) for pattern in patterns]


def _all_gather_finding(pattern: ProgramPattern) -> Finding:
    facts = pattern.facts
    n_used = facts["used"]
    # A device receives the shards of all others; its own it has already.
    received = (facts["n"] - 1) * facts["payload_bytes"]
    return make_finding(
        "waste.all_gather_then_slice",
        f"After the all_gather over {quote_axes(facts['axes'])} dimension {facts['dimension']} has "
        f"size {facts['full_size']}, of which {n_used} {'is' if n_used == 1 else 'are'} used: each "
        f"device receives {bytes_text(received)} and discards nearly all of it.",
        pattern.source,
        (
            "use the local shard directly; if each device needs the shard of another device, send "
            "only that one with lax.ppermute."
            if facts["is_by_device"]
            else "send only that slice: lax.psum of jnp.where(axis_index == owner, slice, 0), or "
            "a lax.ppermute."
        ),
        shows=(f"the slice: {facts['slice']}",),
        details={"axes": list(facts["axes"]), "whole": facts["full_size"], "used": n_used},
    )


def find_psum_then_slice(observation: Observation) -> list[Finding]:
    """Return a finding for each psum of which every device uses only its own slice."""
    patterns = observation.patterns_of("psum_then_slice")
    return [_psum_finding(pattern) for pattern in patterns]


def _psum_finding(pattern: ProgramPattern) -> Finding:
    facts = pattern.facts
    n_devices = facts["n"]
    # A ring all-reduce sends 2 (n-1)/n of the payload, a reduce-scatter half of that.
    redundant = (n_devices - 1) * facts["payload_bytes"] // n_devices
    return make_finding(
        "waste.psum_then_slice",
        f"After the psum over {quote_axes(facts['axes'])} each device uses {facts['used']} of "
        f"{facts['full_size']} elements of dimension {facts['dimension']}. The psum sends twice "
        f"the bytes of a psum_scatter: {bytes_text(redundant)} per device are redundant.",
        pattern.source,
        f"use lax.psum_scatter(x, {axes_argument(facts['axes'])}, scatter_dimension="
        f"{facts['dimension']}, tiled=True): it sums and leaves each device its own shard.",
        shows=(f"the slice: {facts['slice']}",),
        details={"axes": list(facts["axes"]), "whole": facts["full_size"], "used": facts["used"]},
    )


def find_loop_invariant_collectives(observation: Observation) -> list[Finding]:
    """Return a finding for each collective that could run once, before its loop."""
    patterns = observation.patterns_of("loop_invariant_collective")
    return [_loop_invariant_finding(pattern) for pattern in patterns]


def _loop_invariant_finding(pattern: ProgramPattern) -> Finding:
    facts = pattern.facts
    length, n_bytes = facts["length"], facts["wire_bytes"]
    # A while loop has no known length.
    frequency = f"{length} times" if length is not None else "in every iteration"
    cost = (
        f"each device sends {bytes_text(length * n_bytes)} instead of {bytes_text(n_bytes)}"
        if length is not None
        else f"each device sends {bytes_text(n_bytes)} per iteration"
    )
    return make_finding(
        "waste.loop_invariant_collective",
        f"{facts['op']} over {quote_axes(facts['axes'])} of {facts['dtype']}{list(facts['shape'])} "
        f"is called {frequency} with the same operand: {cost}.",
        pattern.source,
        "call it once before the loop and use its result inside; leave it where it is if the "
        "result is too large to keep in memory.",
        shows=(f"the loop: {facts['loop']}",),
        details={"op": facts["op"], "axes": list(facts["axes"]), "length": length},
    )


def find_no_communication(observation: Observation) -> list[Finding]:
    """Return a finding if the program has no shard_map and shards no array."""
    # A program may communicate without shardings of its own, through a library.
    if observation.calls or not observation.patterns_of("nothing_sharded"):
        return []
    return [
        make_finding(
            "program.no_communication",
            f"'{observation.program}' has no shard_map and shards no array: every device would "
            "compute the same, so there is nothing to check.",
            None,
            "check the function that calls jax.shard_map, or pass arguments with a NamedSharding: "
            "shardlab autoshard proposes shardings.",
        )
    ]


# By what this version of JAX does with such a ppermute; `_jax.ppermute_order` finds it out.
_ORDER_RULES = {
    "mesh": "This version of JAX ignores that and numbers the devices in mesh order, so the pairs "
    "may name other devices than intended.",
    "refused": "This version of JAX rejects that when it compiles; older versions ignore the "
    "order.",
    "written": "This version of JAX uses the order as written; older versions ignore it.",
}


def find_ppermute_axis_order(observation: Observation) -> list[Finding]:
    """Return a finding for each ppermute whose axis order differs from the mesh's."""
    patterns = observation.patterns_of("ppermute_axis_order")
    return [_ppermute_finding(pattern) for pattern in patterns]


def _ppermute_finding(pattern: ProgramPattern) -> Finding:
    axes, mesh_order = pattern.facts["axes"], pattern.facts["mesh_order"]
    rule = pattern.facts["rule"]
    finding = make_finding(
        "hazard.ppermute_axis_order",
        f"ppermute over ({quote_axes(axes)}); the mesh order is ({quote_axes(mesh_order)}). "
        f"{_ORDER_RULES[rule]}",
        pattern.source,
        f"write ({quote_axes(mesh_order)}) and number the devices of the pairs in that order: the "
        "last axis varies fastest.",
        details={"axes": list(axes), "mesh_order": list(mesh_order)},
    )
    # A program that JAX rejects never runs; as an error here it is not run on test meshes either,
    # and so not reported twice.
    return replace(finding, severity="error") if rule == "refused" else finding
