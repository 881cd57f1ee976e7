"""What does JAX refuse, and what does it mean by that?"""

from __future__ import annotations

from shardlab.checks.check_codes import finding
from shardlab.checks.spec_findings import misfits, unknown_axis
from shardlab.errors import ProgramRejected
from shardlab.findings.finding import Finding
from shardlab.tracing.observation import Observation, ProgramPattern

# family -> our words beside JAX's: what, and what to try
_MEANS = {
    "replication": (
        "JAX cannot tell that an output is the same on all devices, as its out_specs say. Mostly "
        "a reduction or a gather is missing: each device holds only its part of the result.",
        "sum or average it over that mesh axis (lax.psum, lax.pmean), or name the axis in "
        "out_specs so that the parts are joined. What lax.all_gather has made equal it says with "
        "to='invarying'. check_vma=False only silences the question.",
    ),
    "carry": (
        "What a loop carries starts out the same on all devices and comes back different on each, "
        "so its type changes between turns.",
        "start with a value of the type that comes back: jax.lax.pcast(start, axis, "
        "to='varying'), or begin from data that is sharded already.",
    ),
    "branches": (
        "One branch gives a value that is the same on all devices, the other one that differs, so "
        "their types differ.",
        "make both the same: sum in both branches, or cast the equal one with "
        "jax.lax.pcast(x, axis, to='varying').",
    ),
    "partly_varying": (
        "A collective is over several mesh axes, and its operand differs along some of them and is "
        "the same along others.",
        "leave out the axes along which the value is the same (a sum over them would multiply "
        "it), or cast it first with jax.lax.pcast(x, axis, to='varying').",
    ),
    "tree": (
        "The specs do not have the shape of what they are for: there must be one for each "
        "argument, or one that stands for all of them.",
        "give in_specs one entry for each argument (a tuple of the same length), and out_specs "
        "one for each output; a single P() stands for a whole subtree.",
    ),
    "uneven_collective": (
        "A collective deals an array axis out to the devices, and their number does not fit its "
        "size: with tiled=True it must divide it, without tiled there must be one entry for each "
        "device.",
        "pass tiled=True to deal out blocks, pad that array axis to a multiple of the number of "
        "devices along the mesh axis, or choose another one.",
    ),
    "not_a_spec": (
        "in_specs and out_specs are made of jax.sharding.PartitionSpec, and something else was "
        "given.",
        "write P('data') where P is jax.sharding.PartitionSpec; P() for what every device gets "
        "whole.",
    ),
    "text": (
        "Text was given where the program wants an array, and it is no shape with a dtype.",
        "write the dtype and then the sizes, such as 'f32[8,6]'; 'f32[]' is a single number.",
    ),
    "no_mesh": (
        "A shard_map takes its mesh from the context, and there is none.",
        "give a mesh (mesh='data=8' or --mesh data=8), or pass mesh=... to jax.shard_map.",
    ),
    "mesh": (
        "Arrays or functions of this program belong to different meshes.",
        "build one mesh, use it everywhere, and set it with jax.set_mesh.",
    ),
    "explicit": (
        "The mesh axes are Explicit, so in_specs must say how the argument is sharded already.",
        "leave in_specs out, reshard the argument first (jax.sharding.reshard), or make the mesh "
        "with axis_types=(AxisType.Auto, ...).",
    ),
    "manual": (
        "Inside of shard_map an array is one device's part already; a constraint over a mesh axis "
        "that is mapped there has nothing left to place.",
        "constrain the array outside of the body, or only over axes that shard_map leaves "
        "automatic (axis_names=...).",
    ),
    "twice": (
        "A spec names the same mesh axis for two array axes; a device can only be in one place "
        "along it.",
        "use each mesh axis once in a spec.",
    ),
    "permutation": (
        "A ppermute has a device twice among its senders or its receivers.",
        "let each device send to at most one and receive from at most one.",
    ),
    "permutation_range": (
        "A ppermute names a device beyond the last one of its mesh axes; devices count from 0.",
        "take the number of devices from lax.axis_size(axis), such as "
        "[(i, (i + 1) % n) for i in range(n)].",
    ),
    "other": (
        "JAX refuses the program when it traces it.",
        "see JAX's own words above; shardlab has none of its own for this.",
    ),
}


def refusals(seen: Observation) -> list[Finding]:
    """Return what JAX refuses, as a finding about the spec where it is about one."""
    return [_found(clue) for clue in seen.clues if clue.kind == "refused"]


def raise_if_rejected(seen: Observation) -> None:
    """Raise what JAX refuses, with its words, where a refusal must not look like silence.

    A program that cannot be compiled sends nothing, and any figure of it would be false.
    """
    for found in refusals(seen):
        words = "".join(f"\n    {line}" for line in found.shows)
        error = ProgramRejected(
            f"'{seen.program}' is refused by JAX. {found.what} ({found.code}){words}",
            where=str(found.where or ""),
            fix=found.fix,
        )
        error.finding = found
        raise error


def _found(clue: ProgramPattern) -> Finding:
    family = clue.facts["family"]
    if family == "unknown_axis":
        return unknown_axis(clue)
    if family in ("arguments", "rank", "indivisible"):
        return misfits(clue)
    what, fix = _MEANS[family]
    if family == "other":
        what = f"JAX refuses the program with {_article(clue.facts['error'])}."
    return finding(
        "jax.rejected", what, clue.source, fix, cause=family, shows=told(clue.facts["words"])
    )


def _article(noun: str) -> str:
    return f"{'an' if noun[:1] in 'AEIOU' else 'a'} {noun}"


def told(words: str, most: int = 12) -> tuple[str, ...]:
    """Return JAX's words as lines to show."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    cut = lines[:most] + (["..."] if len(lines) > most else [])
    return tuple(f"JAX: {line}" if n == 0 else f"     {line}" for n, line in enumerate(cut))
