"""Large arrays that every device stores in full, and sums and constraints that replicate.

Measured: for a constraint whose dimension is not divisible by the shard count, under jit, JAX 0.10
leaves the dimension unsharded; 0.12 splits it into as many equal shards as it can, and rejects the
program only if the array is an output. Neither warns. (Both reject a jit's own in_shardings and
out_shardings.)
"""

from __future__ import annotations

import math

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
    """Return a finding for each array of `at_least` bytes that every device stores in full."""
    return [
        _replicated_finding(pattern)
        for pattern in observation.patterns_of("replicated_array")
        if pattern.facts["n_bytes"] >= at_least
    ]


def _replicated_finding(pattern: ProgramPattern) -> Finding:
    facts = pattern.facts
    n_devices = math.prod(size for _, size in facts["mesh"])
    options = [f"dimension {dim} over '{axis}'" for axis, dim in facts["shardable"]]
    where = "in_specs" if facts["boundary"] == "shard_map" else "its sharding"
    return make_finding(
        "waste.replicated",
        f"'{facts['path']}' of {facts['dtype']}{list(facts['shape'])} is replicated on all "
        f"{n_devices} devices: {bytes_text(facts['n_bytes'])} per device, "
        f"{bytes_text(n_devices * facts['n_bytes'])} total.",
        pattern.source if pattern.source.line else None,
        (
            f"shard {' or '.join(options)} in {where}, and all-gather what is needed when it is "
            "needed."
            if options
            else "pad a dimension so that it is divisible by the size of a mesh axis, and shard it "
            f"in {where}."
        ),
        shows=(f"mesh {mesh_text(facts['mesh'])}",),
        details={"path": facts["path"], "bytes": facts["n_bytes"]},
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
