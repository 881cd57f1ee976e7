"""Large arrays that every device stores in full, and sums and constraints that replicate.

Measured: for a constraint whose dimension is not divisible by the shard count, under jit, JAX 0.10
leaves the dimension unsharded; 0.12 splits it into as many equal shards as it can, and rejects the
program only if the array is an output. Neither warns. (Both reject a jit's own in_shardings and
out_shardings.)
"""

from __future__ import annotations

import itertools
import math
import re

from shardlab._text.units import bytes_text
from shardlab.checks.check_codes import make_finding, quote_axes
from shardlab.findings.finding import Finding
from shardlab.sharding.mesh import mesh_text
from shardlab.tracing.observation import Observation, ProgramPattern

# Smaller replicas are the normal cost of data parallelism; larger ones fill up a device.
REPLICATED_BYTES = 64 * 2**20


def find_replicated_arrays(
    observation: Observation, at_least: int = REPLICATED_BYTES
) -> list[Finding]:
    """Return a finding for each kind of array of `at_least` bytes that every device stores in full.

    The tensors of all layers are one finding with a count. A constraint `P()` on a computed
    value counts with all its copies: the compiler gathers the value for no other reason.
    """
    groups: dict[object, list[ProgramPattern]] = {}
    for pattern in observation.patterns_of("replicated_array"):
        if pattern.facts["n_bytes"] >= at_least:
            facts = pattern.facts
            name = re.sub(r"\d+", "*", facts["path"])
            kind = (pattern.source, name, facts["shape"], facts["dtype"], facts["mesh"])
            groups.setdefault(kind, []).append(pattern)
    layers: dict[object, list[list[ProgramPattern]]] = {}
    for key, patterns in groups.items():
        layers.setdefault(_layers_of(patterns) or key, []).append(patterns)
    findings = [_replicated_finding(kinds) for kinds in layers.values()]
    constraints: dict[object, list[ProgramPattern]] = {}
    for pattern in observation.patterns_of("replicating_constraint"):
        if pattern.facts["n_bytes"] * (_count_devices(pattern) - 1) >= at_least:
            constraints.setdefault(pattern.source, []).append(pattern)
    return findings + [_replicating_finding(patterns) for patterns in constraints.values()]


def _count_devices(pattern: ProgramPattern) -> int:
    return math.prod(size for _, size in pattern.facts["mesh"])


def _replicating_finding(patterns: list[ProgramPattern]) -> Finding:
    facts = patterns[0].facts
    n_devices = _count_devices(patterns[0])
    options = [f"'{axis}' in dimension {dim}" for axis, dim in facts["shardable"]]
    times = f" ({len(patterns)} times)" if len(patterns) > 1 else ""
    return make_finding(
        "waste.replicated",
        f"A sharding constraint replicates a value of {facts['dtype']}{list(facts['shape'])} on "
        f"all {n_devices} devices{times}: {bytes_text(facts['n_bytes'])} per device, "
        f"{bytes_text(n_devices * facts['n_bytes'])} total.",
        patterns[0].source,
        f"name mesh axes in the constraint, such as {' or '.join(options)}, or leave it out."
        if options
        else "leave the constraint out, or pad a dimension so that a mesh axis divides it.",
        shows=(f"mesh {mesh_text(facts['mesh'])}",),
        details={"path": "", "bytes": facts["n_bytes"], "count": len(patterns)},
    )


def _layers_of(patterns: list[ProgramPattern]) -> object:
    """Return what identifies the list of layers of which each has one of these arrays, or None.

    `layers[0]['up']`, `layers[1]['up']` and so on are of the list `layers[`.
    """
    facts = patterns[0].facts
    if len(patterns) == 1:
        return None
    columns = zip(*(pattern.facts["path"] for pattern in patterns), strict=False)
    same = itertools.takewhile(lambda column: len(set(column)) == 1, columns)
    prefix = "".join(column[0] for column in same).rstrip("0123456789")
    return patterns[0].source, prefix, facts["mesh"], facts["boundary"]


def _replicated_finding(kinds: list[list[ProgramPattern]]) -> Finding:
    """Return the finding about one array, or about arrays of several kinds in many layers."""
    patterns = [pattern for kind in kinds for pattern in kind]
    pattern, n_arrays = patterns[0], len(patterns)
    facts = pattern.facts
    n_devices = _count_devices(pattern)
    n_bytes = sum(item.facts["n_bytes"] for item in patterns)
    subject, verb = f"'{facts['path']}' of {_type_text(pattern)}", "is"
    if n_arrays > 1:
        types = f"each of {_type_text(pattern)}"
        if len(kinds) > 1:
            types = ", ".join(f"{len(kind)} of {_type_text(kind[0])}" for kind in kinds)
        subject = f"'{facts['path']}' and {n_arrays - 1:,} more arrays like it, {types},"
        verb = "are"
    where = "in_specs" if facts["boundary"] == "shard_map" else "its sharding"
    return make_finding(
        "waste.replicated",
        f"{subject} {verb} replicated on all {n_devices} devices: {bytes_text(n_bytes)} per "
        f"device, {bytes_text(n_devices * n_bytes)} total.",
        pattern.source if pattern.source.line else None,
        _sharding_fix(kinds, where),
        shows=(f"mesh {mesh_text(facts['mesh'])}",),
        details={
            "path": facts["path"],
            "paths": [item.facts["path"] for item in patterns],
            "bytes": facts["n_bytes"],
            "count": n_arrays,
        },
    )


def _type_text(pattern: ProgramPattern) -> str:
    return f"{pattern.facts['dtype']}{list(pattern.facts['shape'])}"


def _sharding_fix(kinds: list[list[ProgramPattern]], where: str) -> str:
    choices = []
    for kind in kinds:
        of_type = f" of {_type_text(kind[0])}" if len(kinds) > 1 else ""
        options = [f"{dim}{of_type} over '{axis}'" for axis, dim in kind[0].facts["shardable"]]
        if options:
            choices.append(" or ".join(f"dimension {option}" for option in options))
    if not choices:
        return (
            "pad a dimension so that it is divisible by the size of a mesh axis, and shard it in "
            f"{where}."
        )
    return (
        f"shard {', '.join(choices)} in {where}, and all-gather what is needed when it is needed."
    )


def find_indivisible_constraints(observation: Observation) -> list[Finding]:
    """Return a finding for each constraint on a dimension that its shard count does not divide."""
    patterns = observation.patterns_of("indivisible_constraint")
    return [_constraint_finding(pattern) for pattern in patterns]


def _constraint_finding(pattern: ProgramPattern) -> Finding:
    facts = pattern.facts
    dim, size, n_shards, possible = facts["dim"], facts["size"], facts["n"], facts["possible"]
    # What happens instead depends on the version of JAX; see above.
    outcome = (
        "every device stores the full dimension"
        if possible == 1
        else f"every device stores the full dimension (JAX 0.10) or one of {possible} shards "
        "(JAX 0.12)"
    )
    return make_finding(
        "hazard.constraint_replicates",
        f"A sharding constraint asks for {n_shards} shards over {quote_axes(facts['axes'])} of "
        f"dimension {dim}, whose size {size} is not divisible by {n_shards}: {outcome}, and JAX "
        "does not warn.",
        pattern.source,
        f"pad dimension {dim} to {-(-size // n_shards) * n_shards}, constrain another dimension, "
        "or remove the constraint.",
        shows=(f"shape {tuple(facts['shape'])}",),
        details={"axis": dim, "size": size, "shards": n_shards},
    )


def find_psums_of_replicated(observation: Observation) -> list[Finding]:
    """Return a finding for each psum that only multiplies by the number of replicas."""
    patterns = observation.patterns_of("psum_of_replicated")
    return [_psum_finding(pattern) for pattern in patterns]


def _psum_finding(pattern: ProgramPattern) -> Finding:
    axes, n_replicas = pattern.facts["axes"], pattern.facts["n"]
    quoted = quote_axes(axes)
    varying = quote_axes([axis for axis in pattern.facts["over"] if axis not in axes])
    rest = f" (it is also over {varying}, along which the value differs)" if varying else ""
    return make_finding(
        "hazard.psum_of_replicated",
        f"psum over {quoted} of a value that is replicated over {quoted}: it sums {n_replicas} "
        f"equal values, which multiplies the value by {n_replicas}{rest}.",
        pattern.source,
        f"leave {quoted} out of the psum; for a mean, use lax.pmean; if the value should differ "
        f"along {quoted}, shard it over {quoted} in in_specs.",
        details={"axes": list(axes), "n": n_replicas},
    )
