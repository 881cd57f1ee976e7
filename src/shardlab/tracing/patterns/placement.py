"""Where arrays lie: constraints that cannot be kept, and large arrays left whole everywhere.

Makes three kinds of clue.

- `uneven_constraint`: `axis` (array axis), `size`, `axes` (mesh axes), `n` (shards asked for),
  `possible` (the most shards that divide the size, as newer JAX makes), `shape`.
- `whole_everywhere`: `path`, `shape`, `dtype`, `n_bytes`, `mesh`, `could` (pairs of a mesh axis and
  an array axis that it divides), `at` ("shard_map" or "jit").
- `nothing_sharded`: no facts; the program neither maps nor places anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding

from shardlab import _jax
from shardlab.findings.source import UNKNOWN_LOCATION
from shardlab.sharding.dtype import parse_dtype
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.tracing.compiler.needs_compiler import shardings_asked_for
from shardlab.tracing.jaxpr_walk import Block, Site
from shardlab.tracing.observation import ProgramPattern
from shardlab.tracing.patterns.device_values import Program

# Smaller arrays are nobody's trouble; what is large is the check's to say.
_LEAST_BYTES = 2**16


def uneven_constraints(program: Program) -> Iterator[ProgramPattern]:
    """Yield a clue for each constraint that asks for shards of different sizes."""
    for site in program.sites:
        sharding = site.eqn.params.get("sharding")
        if site.name != "sharding_constraint" or not isinstance(sharding, NamedSharding):
            continue
        shape = site.eqn.invars[0].aval.shape
        sizes = dict(sharding.mesh.shape)
        for axis, names in enumerate(boundary.spec_entries(sharding.spec)):
            n = math.prod(sizes[name] for name in names if name not in site.place.axes.manual)
            # One row is whole wherever it is; nobody loses by that.
            if axis < len(shape) and shape[axis] > 1 and shape[axis] % n:
                facts = {
                    "axis": axis,
                    "size": shape[axis],
                    "axes": names,
                    "n": n,
                    "possible": math.gcd(shape[axis], n),
                    "shape": tuple(shape),
                }
                yield ProgramPattern("uneven_constraint", site.source, facts)


# ---------------------------------------------------------------------------- whole on every device


def whole_everywhere(program: Program, names: Sequence[str]) -> Iterator[ProgramPattern]:
    """Yield a clue for each input that every device of a mesh holds whole."""
    told: set[str] = set()
    for clue in (*_of_shard_maps(program, names), *_of_arguments(program, names)):
        if clue.facts["path"] not in told:
            told.add(clue.facts["path"])
            yield clue


def _of_shard_maps(program: Program, names: Sequence[str]) -> Iterator[ProgramPattern]:
    for site in program.sites:
        if site.name != "shard_map" or site.phase != "forward" or site.place.axes.manual:
            continue
        params = site.eqn.params
        mesh = {n: s for n, s in params["mesh"].shape.items() if n in params["newly_manual_axes"]}
        for number, (atom, spec) in enumerate(
            zip(site.eqn.invars, params["in_specs"], strict=True)
        ):
            if math.prod(mesh.values()) > 1 and not _splits(boundary.spec_axes(spec), mesh):
                path = _path(program, site, atom, number, names)
                yield from _whole(site.source, path, atom.aval, mesh, "shard_map")


def _of_arguments(program: Program, names: Sequence[str]) -> Iterator[ProgramPattern]:
    """Yield what was given as a whole array: with a sharding that splits nothing, or without one.

    Without one only where others have one and the program places nothing itself: then the compiler
    has nothing to go by.
    """
    shardings = program.shardings[: len(program.given)]
    meshes = [s.mesh for s in shardings if isinstance(s, NamedSharding) and s.mesh.size > 1]
    places_itself = any(
        site.name == "shard_map" or shardings_asked_for(site.eqn.params) for site in program.sites
    )
    for array, name, sharding in zip(program.given, names, shardings, strict=False):
        if isinstance(sharding, NamedSharding) and sharding.mesh.size > 1:
            mesh = dict(sharding.mesh.shape)
            if not _splits(boundary.spec_axes(sharding.spec), mesh):
                yield from _whole(UNKNOWN_LOCATION, name, array, mesh, "jit")
        elif meshes and not places_itself:
            yield from _whole(UNKNOWN_LOCATION, name, array, dict(meshes[0].shape), "jit")


def _splits(mentioned: frozenset[str], mesh: Mapping[str, int]) -> bool:
    return any(mesh.get(name, 1) > 1 for name in mentioned)


def _whole(
    source: Any, path: str, array: Any, mesh: Mapping[str, int], at: str
) -> Iterator[ProgramPattern]:
    if _jax.is_extended(array.dtype):
        return
    dtype, shape = parse_dtype(array.dtype), tuple(array.shape)
    n_bytes = dtype.n_bytes(math.prod(shape))
    if n_bytes >= _LEAST_BYTES:
        facts = {
            "path": path,
            "shape": shape,
            "dtype": dtype.name,
            "n_bytes": n_bytes,
            "mesh": tuple(mesh.items()),
            "could": tuple(_could(shape, mesh)),
            "at": at,
        }
        yield ProgramPattern("whole_everywhere", source, facts)


def _could(shape: Sequence[int], mesh: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    for name, n in mesh.items():
        fitting = [axis for axis, size in enumerate(shape) if n > 1 and size and size % n == 0]
        if fitting:
            yield name, max(fitting, key=lambda axis: shape[axis])


def _path(program: Program, site: Site, atom: Any, number: int, names: Sequence[str]) -> str:
    """Return what a person calls an input: their argument, or the body's."""
    block: Block | None = site.block
    while block is not None and block.outer is not None and block.passed(atom) is not None:
        atom, block = block.passed(atom), block.outer.block
    if block is not None and block.outer is None and not isinstance(atom, _jax.Literal):
        for n, var in enumerate(block.jaxpr.invars):
            if var is atom and n < len(names):
                return names[n]
    body, _, _ = _jax.function_location(site.eqn.params["jaxpr"])
    return f"input {number} of {body}"


# ----------------------------------------------------------------------------------- nothing at all


def nothing_sharded(program: Program) -> Iterator[ProgramPattern]:
    """Yield a clue if the program has no shard_map, asks for no sharding and is given none."""
    is_placed = any(
        isinstance(each, NamedSharding) and each.mesh.size > 1 for each in program.shardings
    )
    if not is_placed and not any(
        site.name == "shard_map" or shardings_asked_for(site.eqn.params) for site in program.sites
    ):
        yield ProgramPattern("nothing_sharded", UNKNOWN_LOCATION)
