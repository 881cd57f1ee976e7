"""A function, its arguments and a mesh -> an Observation. Nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jax.sharding import NamedSharding

from shardlab import _jax
from shardlab._jax.shardy_program import PartitioningFailed
from shardlab.collectives.call import CollectiveCall
from shardlab.sharding.mesh import MeshSizes, mesh_text, parse_mesh
from shardlab.tracing.collective_calls import collective_call, is_collective_site
from shardlab.tracing.compiler.needs_compiler import needs_compiler, requested_shardings
from shardlab.tracing.jaxpr_flops import WHILE_LOOP_NOTE, Flops, count_jaxpr_flops
from shardlab.tracing.jaxpr_walk import Site, walk_jaxpr
from shardlab.tracing.observation import Observation
from shardlab.tracing.patterns import find_patterns
from shardlab.tracing.rejected_programs import find_rejection, full_tracebacks
from shardlab.tracing.stage import LoweringFailed, StagedProgram, program_name, stage_program

if TYPE_CHECKING:
    from shardlab.tracing.compiler.inserted_collectives import CompiledObservation


CompilerUse = Literal["never", "quick", "for shardings", "always"]
_ALL_REPLICATED_NOTE = (
    "All inputs are replicated, because none has a sharding: every device does all the work. "
    "shardlab autoshard proposes shardings."
)


def observe(
    f: Callable[..., Any],
    args: Sequence[Any],
    mesh: Any,
    *,
    compiler_use: CompilerUse = "for shardings",
    topology: str | None = None,
) -> Observation:
    """Return what `f(*args)` communicates and computes on `mesh`, without running it.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> f = jax.shard_map(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())
    >>> call, = observe(f, ["f32[1024]"], "data=512").calls
    >>> call.op, call.mesh_axes, call.shape, call.wire_bytes
    ('psum', ('data',), (2,), 16)

    A program that JAX rejects gives the pattern `rejected` with JAX's message; any other exception
    is the program's own and raised. `compiler_use` says which programs are compiled; without, the
    collectives that XLA would insert and the memory are not observed. `quick` takes the collectives
    that Shardy's passes insert instead. With a `topology` every program is compiled, by XLA for
    TPU.
    """
    with full_tracebacks():
        try:
            # Some programs fail while tracing, others only when they are lowered for the compiler.
            staged = stage_program(f, args, mesh)
        except Exception as error:
            return _rejected_observation(error, f, mesh)
        try:
            return observe_staged(staged, compiler_use=compiler_use, topology=topology)
        except LoweringFailed as error:
            return _rejected_observation(error.__cause__ or error, f, mesh)


def _rejected_observation(error: BaseException, f: Any, mesh: Any) -> Observation:
    """Return an observation of the rejection alone; re-raise an error that is not JAX's."""
    pattern = find_rejection(error, f)
    if pattern is None:
        raise error
    sizes = () if mesh is None else tuple(parse_mesh(mesh).shape.items())
    return Observation(program=program_name(f), mesh=sizes, patterns=(pattern,))


def observe_staged(
    staged: StagedProgram,
    *,
    compiler_use: CompilerUse = "for shardings",
    topology: str | None = None,
) -> Observation:
    """Return what a traced program communicates and computes.

    Dead code is removed first, as the compiler does: `jax.grad(loss)` does not contain the psum of
    the loss itself.
    """
    # The user's mesh may be in context, and may have other sizes than the requested one.
    with _jax.no_mesh():
        jaxpr = _jax.without_dead_code(staged.jaxpr)
        sites = list(walk_jaxpr(jaxpr))
        calls = tuple(collective_call(site) for site in sites if is_collective_site(site))
        shardings = (*staged.shardings, *staged.result_shardings)
        patterns = find_patterns(jaxpr, sites, staged.arrays, staged.names, shardings)
    sizes, notes = _program_mesh(staged, sites)
    is_sharded = _needs_compiler(staged, jaxpr)
    compiled, inserted, compiler_notes = _observe_inserted(
        staged, compiler_use, topology, is_sharded
    )
    calls, notes = (*calls, *inserted), (*notes, *compiler_notes)
    notes = (*notes, *_partly_manual_notes(sites))
    if sizes and not (calls or is_sharded or any(site.name == "shard_map" for site in sites)):
        notes = (*notes, _ALL_REPLICATED_NOTE)
    # The count from partitioned HLO replaces it if there is one: its shapes are per device.
    n_flops, flops_notes = _flops_per_device(count_jaxpr_flops(jaxpr), sizes, is_sharded)
    if compiled is not None and compiled.flops is not None:
        n_flops, flops_notes = compiled.flops, ()
    return Observation(
        program=staged.program,
        mesh=sizes,
        calls=calls,
        patterns=patterns,
        flops=n_flops,
        memory=compiled.memory if compiled else None,
        notes=(*notes, *flops_notes, *_count_notes(calls)),
        n_shard_maps=sum(site.name == "shard_map" for site in sites),
        n_unchecked=sum(
            site.name == "shard_map" and not site.eqn.params["check_vma"] for site in sites
        ),
    )


# --------------------------------------------------------------------------------- the mesh


def _program_mesh(
    staged: StagedProgram, sites: Sequence[Site]
) -> tuple[MeshSizes, tuple[str, ...]]:
    """Return the requested mesh, or the program's own; the largest one if it has several."""
    if staged.mesh is not None:
        return staged.sizes, ()
    shardings = (*staged.shardings, *staged.result_shardings)
    meshes = [mesh for site in sites for mesh in _site_meshes(site)]
    meshes += [sharding.mesh for sharding in shardings if isinstance(sharding, NamedSharding)]
    unique = dict.fromkeys(tuple(mesh.shape.items()) for mesh in meshes if not mesh.empty)
    if not unique:
        return (), ()
    # A mesh with more axes describes the same devices in more detail.
    largest = max(unique, key=lambda sizes: (len(sizes), _device_count(sizes)))
    if len(unique) == 1:
        return largest, ()
    texts = "; ".join(map(mesh_text, unique))
    return largest, (f"The program has {len(unique)} meshes ({texts}); the largest is shown.",)


def _device_count(sizes: MeshSizes) -> int:
    return math.prod(size for _, size in sizes)


def _site_meshes(site: Site) -> list[Any]:
    if site.name == "shard_map":
        return [site.eqn.params["mesh"]] if not site.context.axes.manual else []
    return [sharding.mesh for sharding in requested_shardings(site.eqn.params)]


# ----------------------------------------------------------------------------------- the compiler


def _needs_compiler(staged: StagedProgram, jaxpr: Any) -> bool:
    """Return whether arrays are sharded outside shard_map, or results by the jit itself."""
    has_sharded_result = any(
        isinstance(sharding, NamedSharding) and any(sharding.spec)
        for sharding in staged.result_shardings
    )
    return has_sharded_result or needs_compiler(jaxpr, staged.shardings)


def _observe_inserted(
    staged: StagedProgram, compiler_use: CompilerUse, topology: str | None, is_sharded: bool
) -> tuple[CompiledObservation | None, tuple[CollectiveCall, ...], tuple[str, ...]]:
    """Return what was compiled, the inserted collectives, and notes about them."""
    fallback_notes: tuple[str, ...] = ()
    if compiler_use == "quick":
        if not is_sharded:
            return None, (), ()
        from shardlab.tracing.compiler.shardy_calls import REJECTED_NOTE, observe_with_shardy

        try:
            return None, *observe_with_shardy(staged)
        except PartitioningFailed:
            fallback_notes = (REJECTED_NOTE,)
    elif compiler_use == "never" or not (compiler_use == "always" or is_sharded or topology):
        return None, (), ()
    compiled = _compile_program(staged, topology)
    return compiled, compiled.calls, (*fallback_notes, *compiled.notes)


def _compile_program(staged: StagedProgram, topology: str | None) -> CompiledObservation:
    # Imported here because they are slow to import and rarely needed.
    from shardlab.tracing.compiler.inserted_collectives import observe_compiled
    from shardlab.tracing.compiler.tpu_topology import observe_on_topology

    if topology is None:
        return observe_compiled(staged)
    return observe_on_topology(staged, topology)


# ----------------------------------------------------------------------------- FLOPs and notes


def _flops_per_device(
    flops: Flops, sizes: MeshSizes, is_sharded: bool
) -> tuple[int, tuple[str, ...]]:
    """Return the FLOPs per device, and the assumption about those outside shard_maps."""
    notes = []
    if flops.has_while:
        notes.append(WHILE_LOOP_NOTE)
    # Outside shard_map the jaxpr has global shapes. XLA usually divides that work over all devices.
    n_devices = _device_count(sizes) if is_sharded else 1
    share = 100 * flops.outside / max(flops.total, 1)
    if sizes and share >= 1:
        assumption = (
            f"divided evenly over {n_devices} devices" if is_sharded else "done by every device"
        )
        notes.append(
            f"FLOPs: {share:.0f} % are outside any shard_map and assumed to be {assumption}."
        )
    return flops.total - flops.outside + -(-flops.outside // n_devices), tuple(notes)


def _partly_manual_notes(sites: Sequence[Site]) -> tuple[str, ...]:
    """Return a note about mesh axes over which the compiler may still shard operands."""
    n_calls, automatic_axes = 0, dict[str, None]()
    for site in filter(is_collective_site, sites):
        axes = site.context.axes
        # Axes that are not manual here belong to XLA, also inside the shard_map.
        names = [name for name in axes.drop_size_one(axes.sizes) if name not in axes.manual]
        n_calls += bool(names)
        automatic_axes.update(dict.fromkeys(names))
    if not n_calls:
        return ()
    calls = "One call is" if n_calls == 1 else f"{n_calls} calls are"
    return (
        f"{calls} in a shard_map that leaves {', '.join(map(repr, automatic_axes))} to the "
        "compiler: if it shards their operands over that too, they send less than listed.",
    )


def _count_notes(calls: Sequence[CollectiveCall]) -> tuple[str, ...]:
    n_unknown = sum(call.count is None for call in calls)
    if not n_unknown:
        return ()
    which = "One call is" if n_unknown == 1 else f"{n_unknown} calls are"
    return (f"{which} in a while loop: the bytes are those of one iteration.",)
