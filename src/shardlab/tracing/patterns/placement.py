"""How arrays are sharded: constraints that do not fit, large replicated inputs, nothing sharded.

Finds four kinds of pattern.

- `indivisible_constraint`: `dim`, `size`, `axes` (mesh axes), `n` (requested shards), `possible`
  (the largest shard count that divides the size, which newer JAX uses), `shape`.
- `replicated_array`: `path`, `shape`, `dtype`, `n_bytes`, `mesh`, `shardable` (pairs of a mesh axis
  and a dimension that is divisible by it), `boundary` ("shard_map" or "jit").
- `replicating_constraint`: a constraint that leaves an intermediate value replicated: `shape`,
  `dtype`, `n_bytes`, `mesh`, `shardable`.
- `nothing_sharded`: no facts; the program has no shard_map and no sharding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardlab import _jax
from shardlab.findings.source import UNKNOWN_LOCATION, SourceLocation
from shardlab.sharding.dtype import parse_dtype
from shardlab.simulator.interpreter import shard_boundary
from shardlab.tracing.compiler.needs_compiler import requested_shardings
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import WalkedProgram

# Smaller arrays never matter; from which size on one is reported is decided in `checks`.
_MIN_BYTES = 2**16


def find_indivisible_constraints(program: WalkedProgram) -> Iterator[ProgramPattern]:
    """Yield a pattern for each constraint on a dimension that its shard count does not divide."""
    for site in program.sites:
        sharding = site.eqn.params.get("sharding")
        if site.name != "sharding_constraint" or not isinstance(sharding, NamedSharding):
            continue
        shape = site.eqn.invars[0].aval.shape
        sizes = dict(sharding.mesh.shape)
        for dim, names in enumerate(shard_boundary.spec_entries(sharding.spec)):
            n_shards = math.prod(
                sizes[name] for name in names if name not in site.context.axes.manual
            )
            # A dimension of size 1 cannot be sharded anyway, and replicating it costs nothing.
            if dim < len(shape) and shape[dim] > 1 and shape[dim] % n_shards:
                facts = {
                    "dim": dim,
                    "size": shape[dim],
                    "axes": names,
                    "n": n_shards,
                    "possible": math.gcd(shape[dim], n_shards),
                    "shape": tuple(shape),
                }
                yield ProgramPattern("indivisible_constraint", site.source, facts)


def find_replicating_constraints(program: WalkedProgram) -> Iterator[ProgramPattern]:
    """Yield a pattern for each constraint that leaves a computed value unsharded: `P()`."""
    for site in program.sites:
        if site.name not in ("sharding_constraint", "reshard") or site.phase != "forward":
            continue
        sharding = site.eqn.params.get("sharding") or site.eqn.params.get("dst_sharding")
        atom = site.eqn.invars[0]
        # An argument of the program is reported as one, whatever constraint it passes.
        if not isinstance(sharding, NamedSharding) or _is_argument(site, atom):
            continue
        manual = site.context.axes.manual
        mesh = {name: n for name, n in sharding.mesh.shape.items() if name not in manual}
        # A dimension may be left to the compiler (P.UNCONSTRAINED), which can shard it.
        is_open = any(entry is P.UNCONSTRAINED for entry in sharding.spec)
        if math.prod(mesh.values()) == 1 or is_open:
            continue
        if not _is_sharded(shard_boundary.spec_axes(sharding.spec), mesh):
            for pattern in _replicated_array(site.source, "", atom.aval, mesh, "constraint"):
                yield ProgramPattern("replicating_constraint", site.source, pattern.facts)


def _is_argument(site: Site, atom: Any) -> bool:
    block: Block | None = site.block
    while block is not None and block.outer is not None and block.caller_operand(atom) is not None:
        atom, block = block.caller_operand(atom), block.outer.block
    is_top = block is not None and block.outer is None and not isinstance(atom, _jax.Literal)
    return is_top and block is not None and any(var is atom for var in block.jaxpr.invars)


# ------------------------------------------------------------------------------ replicated inputs


def find_replicated_inputs(
    program: WalkedProgram, names: Sequence[str]
) -> Iterator[ProgramPattern]:
    """Yield a pattern for each input that is replicated over a mesh, each path once."""
    reported: set[str] = set()
    for pattern in (*_shard_map_inputs(program, names), *_jit_arguments(program, names)):
        if pattern.facts["path"] not in reported:
            reported.add(pattern.facts["path"])
            yield pattern


def _shard_map_inputs(program: WalkedProgram, names: Sequence[str]) -> Iterator[ProgramPattern]:
    for site in program.sites:
        # A nested shard_map gets shards of the outer one, which are reported there.
        if site.name != "shard_map" or site.phase != "forward" or site.context.axes.manual:
            continue
        params = site.eqn.params
        mesh = {
            name: size
            for name, size in params["mesh"].shape.items()
            if name in params["newly_manual_axes"]
        }
        if math.prod(mesh.values()) == 1:
            continue
        operands = zip(site.eqn.invars, params["in_specs"], strict=True)
        for number, (atom, spec) in enumerate(operands):
            if not _is_sharded(shard_boundary.spec_axes(spec), mesh):
                path = _input_path(site, atom, number, names)
                yield from _replicated_array(site.source, path, atom.aval, mesh, "shard_map")


def _jit_arguments(program: WalkedProgram, names: Sequence[str]) -> Iterator[ProgramPattern]:
    """Yield arguments with a replicated sharding, or without any.

    Without any only if other arguments have one and the program has no shard_map or constraint:
    otherwise the compiler may well shard the argument.
    """
    shardings = program.shardings[: len(program.arguments)]
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding) and s.mesh.size > 1]
    requests_sharding = _requests_sharding(program)
    for array, name, sharding in zip(program.arguments, names, shardings, strict=False):
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            mesh = dict(sharding.mesh.shape)
            if not _is_sharded(shard_boundary.spec_axes(sharding.spec), mesh):
                yield from _replicated_array(UNKNOWN_LOCATION, name, array, mesh, "jit")
        elif meshes and not requests_sharding:
            mesh = dict(meshes[0].shape)
            yield from _replicated_array(UNKNOWN_LOCATION, name, array, mesh, "jit")


def _is_sharded(spec_axes: frozenset[str], mesh: Mapping[str, int]) -> bool:
    return any(mesh.get(name, 1) > 1 for name in spec_axes)


def _replicated_array(
    source: SourceLocation, path: str, array: Any, mesh: Mapping[str, int], boundary: str
) -> Iterator[ProgramPattern]:
    # Key arrays have no size in bytes, and are small.
    if _jax.is_extended(array.dtype):
        return
    dtype, shape = parse_dtype(array.dtype), tuple(array.shape)
    n_bytes = dtype.n_bytes(math.prod(shape))
    if n_bytes >= _MIN_BYTES:
        facts = {
            "path": path,
            "shape": shape,
            "dtype": dtype.name,
            "n_bytes": n_bytes,
            "mesh": tuple(mesh.items()),
            "shardable": tuple(_shardable_dims(shape, mesh)),
            "boundary": boundary,
        }
        yield ProgramPattern("replicated_array", source, facts)


def _shardable_dims(shape: Sequence[int], mesh: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield for each mesh axis the largest dimension that is divisible by it."""
    for name, n in mesh.items():
        dims = [dim for dim, size in enumerate(shape) if n > 1 and size and size % n == 0]
        if dims:
            yield name, max(dims, key=lambda dim: shape[dim])


def _input_path(site: Site, atom: Any, number: int, names: Sequence[str]) -> str:
    """Return the name of an input: the program argument that it is, or a number."""
    block: Block | None = site.block
    while block is not None and block.outer is not None and block.caller_operand(atom) is not None:
        atom, block = block.caller_operand(atom), block.outer.block
    if block is not None and block.outer is None and not isinstance(atom, _jax.Literal):
        for var, name in zip(block.jaxpr.invars, names, strict=False):
            if var is atom:
                return name
    body, _, _ = _jax.function_location(site.eqn.params["jaxpr"])
    return f"input {number} of {body}"


# --------------------------------------------------------------------------------- nothing sharded


def find_nothing_sharded(program: WalkedProgram) -> Iterator[ProgramPattern]:
    """Yield a pattern if there is no shard_map, no constraint and no sharded argument."""
    has_sharding = any(
        isinstance(sharding, NamedSharding) and sharding.mesh.size > 1
        for sharding in program.shardings
    )
    if not has_sharding and not _requests_sharding(program):
        yield ProgramPattern("nothing_sharded", UNKNOWN_LOCATION)


def _requests_sharding(program: WalkedProgram) -> bool:
    return any(
        site.name == "shard_map" or requested_shardings(site.eqn.params) for site in program.sites
    )
