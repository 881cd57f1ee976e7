"""Programs that JAX rejects: what its message means, and what to do."""

from __future__ import annotations

from shardlab._jax import explicit_axes
from shardlab.checks.check_codes import make_finding
from shardlab.checks.spec_findings import spec_finding, unknown_axis_finding
from shardlab.errors import ProgramRejected
from shardlab.findings.finding import Finding
from shardlab.tracing.observation import Observation, ProgramPattern

# family of JAX messages -> explanation, fix
_EXPLANATIONS = {
    "replication": (
        "JAX cannot prove that an output is replicated, as its out_specs declare. Usually a "
        "reduction or an all_gather is missing: each device holds only its own partial result.",
        "reduce it over that mesh axis (lax.psum, lax.pmean), or name the axis in out_specs to "
        "concatenate the shards. For a lax.all_gather whose result is equal on all devices pass "
        "to='invarying'. check_vma=False only turns the check off.",
    ),
    "carry": (
        "A loop carry starts as replicated and comes back varying over a mesh axis, so its type "
        "changes between iterations.",
        "start with a value of the type that comes back: jax.lax.pcast(start, axis, "
        "to='varying'), or with data that is already sharded.",
    ),
    "branches": (
        "One branch returns a replicated value, the other one that varies by device, so their "
        "types differ.",
        "make both the same: reduce in both branches, or cast the replicated value with "
        "jax.lax.pcast(x, axis, to='varying').",
    ),
    "partly_varying": (
        "A collective is over several mesh axes, and its operand varies over some of them but is "
        "replicated over others.",
        "leave out the axes over which the value is replicated (a psum over them would multiply "
        "it), or cast it first with jax.lax.pcast(x, axis, to='varying').",
    ),
    "tree": (
        "The pytree of specs does not match the arguments or outputs: it must have one spec for "
        "each, or one that is a prefix for all of them.",
        "give in_specs one entry per argument (a tuple of the same length), and out_specs one per "
        "output; a single P() covers a full subtree.",
    ),
    "uneven_collective": (
        "A collective splits a dimension over the devices, and the size of the dimension does not "
        "fit: with tiled=True it must be divisible by the number of devices, without tiled it must "
        "be equal to it.",
        "pass tiled=True to split into blocks, pad that dimension to a multiple of the number of "
        "devices along the mesh axis, or choose another dimension.",
    ),
    "not_a_spec": (
        "in_specs and out_specs must be pytrees of jax.sharding.PartitionSpec; got something else.",
        "write P('data') where P is jax.sharding.PartitionSpec, and P() for a replicated array.",
    ),
    "text": (
        "The program expects an array; the text passed for it is not a dtype with a shape.",
        "write the dtype and then the sizes, such as 'f32[8,6]'; 'f32[]' is a scalar.",
    ),
    "no_mesh": (
        "The program takes its mesh from the context, but no mesh is set.",
        "pass a mesh (mesh='data=8' or --mesh data=8), or name it in the program: mesh=... of "
        "jax.shard_map, NamedSharding(mesh, spec) in a constraint.",
    ),
    "mesh": (
        "Arrays or functions of this program are on different meshes.",
        "create one mesh, use it everywhere, and set it with jax.set_mesh.",
    ),
    "explicit": (
        "The mesh axes are Explicit, so in_specs must match how the argument is already sharded.",
        "leave in_specs out, reshard the argument first (jax.sharding.reshard), or create the mesh "
        "with axis_types=(AxisType.Auto, ...).",
    ),
    "explicit_type": (explicit_axes.EXPLANATION, explicit_axes.FIX),
    "manual": (
        "Inside shard_map an array is already one device's shard, so it cannot be constrained over "
        "a mesh axis that is manual there.",
        "constrain the array outside the body, or only over axes that shard_map leaves automatic "
        "(axis_names=...).",
    ),
    "twice": (
        "A spec uses the same mesh axis for two dimensions.",
        "use each mesh axis at most once in a spec.",
    ),
    "permutation": (
        "A ppermute lists a device twice among its sources or its destinations.",
        "give each device at most one source and at most one destination.",
    ),
    "permutation_range": (
        "A ppermute names a device index beyond the last one of its mesh axes; indices start at 0.",
        "use lax.axis_size(axis) for the number of devices, such as "
        "[(i, (i + 1) % n) for i in range(n)].",
    ),
    "other": (
        "JAX rejects the program while tracing it.",
        "JAX's message above names the operation and the line to change.",
    ),
}


def find_rejections(observation: Observation) -> list[Finding]:
    """Return a finding for each rejection by JAX; about the spec if a spec is the reason."""
    return [_rejection_finding(pattern) for pattern in observation.patterns_of("rejected")]


def raise_if_rejected(observation: Observation) -> None:
    """Raise `ProgramRejected` with the finding if JAX rejects the program.

    A program that does not compile sends nothing; a trace without calls would be misleading.
    """
    for finding in find_rejections(observation):
        lines = "".join(f"\n    {line}" for line in finding.shows)
        error = ProgramRejected(
            f"JAX rejects '{observation.program}'. {finding.what} ({finding.code}){lines}",
            where=str(finding.where or ""),
            fix=finding.fix,
        )
        error.finding = finding
        raise error


def _rejection_finding(pattern: ProgramPattern) -> Finding:
    family = pattern.facts["family"]
    if family == "unknown_axis":
        return unknown_axis_finding(pattern)
    # These have findings of their own, because the spec and the array are known.
    if family in ("arguments", "rank", "indivisible"):
        return spec_finding(pattern)
    explanation, fix = _EXPLANATIONS[family]
    if family == "other":
        error_type = pattern.facts["error"]
        article = "an" if error_type[:1] in "AEIOU" else "a"
        explanation = f"JAX rejects the program with {article} {error_type}."
    return make_finding(
        "jax.rejected",
        explanation,
        pattern.source,
        fix,
        cause=family,
        shows=_message_lines(pattern.facts["message"]),
    )


def _message_lines(message: str, max_lines: int = 12) -> tuple[str, ...]:
    """Return JAX's message as lines to show."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    # Messages about large pytrees have hundreds of lines.
    lines = lines[:max_lines] + (["..."] if len(lines) > max_lines else [])
    return tuple(f"{'     ' if number else 'JAX: '}{line}" for number, line in enumerate(lines))
