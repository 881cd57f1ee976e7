"""A person's function, arguments and mesh -> an Observation. Nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jax.sharding import NamedSharding

from shardlab import _jax
from shardlab.collectives.call import CollectiveCall
from shardlab.sharding.mesh import MeshSizes, parse_mesh
from shardlab.tracing.collective_calls import call_at, communicates
from shardlab.tracing.compiler.needs_compiler import is_left_to_the_compiler, shardings_asked_for
from shardlab.tracing.rejected_programs import full_tracebacks, record_rejections
from shardlab.tracing.jaxpr_flops import ONE_TURN, Flops, flops
from shardlab.tracing.jaxpr_walk import Site, walk_jaxpr
from shardlab.tracing.observation import Observation
from shardlab.tracing.patterns import clues
from shardlab.tracing.stage import NotLowered, StagedProgram, program_name, stage

if TYPE_CHECKING:
    from shardlab.tracing.compiler.inserted_collectives import Seen


CompilerUse = Literal["never", "for shardings", "always"]


def observe(
    f: Callable[..., Any],
    args: Sequence[Any],
    mesh: Any,
    *,
    compiled: CompilerUse = "for shardings",
    topology: str | None = None,
) -> Observation:
    """Return what `f(*args)` communicates and computes on `mesh`, without running it.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> f = jax.shard_map(lambda x: jax.lax.psum(x, "data"), in_specs=P("data"), out_specs=P())
    >>> call, = observe(f, ["f32[1024]"], "data=512").calls
    >>> call.op, call.mesh_axes, call.shape, call.wire_bytes
    ('psum', ('data',), (2,), 16)

    What JAX refuses is seen too (a clue, in its own words); any other exception is the program's.
    `compiled` says of which programs the compiler is asked; where it is not, what it would insert,
    and memory, are not seen.
    With a `topology` the real TPU compiler is asked, and of every program.
    """
    with full_tracebacks():
        try:
            staged = stage(f, args, mesh)
        except Exception as error:
            return _refused(error, f, mesh)
        try:
            return observe_staged(staged, compiled=compiled, topology=topology)
        except NotLowered as failed:
            return _refused(failed.__cause__ or failed, f, mesh)


def _refused(error: BaseException, f: Any, mesh: Any) -> Observation:
    """Return what JAX refuses as all that is seen; raise what the program itself, or we, raised."""
    clue = record_rejections(error, f)
    if clue is None:
        raise error
    sizes = () if mesh is None else tuple(parse_mesh(mesh).shape.items())
    return Observation(program=program_name(f), mesh=sizes, clues=(clue,))


def observe_staged(
    staged: StagedProgram, *, compiled: CompilerUse = "for shardings", topology: str | None = None
) -> Observation:
    """Return what a traced program communicates and computes.

    What nothing depends on is left out, as the compiler does: of `jax.grad(loss)` the psum of the
    loss itself is not there.
    """
    with _jax.no_mesh():  # the person's, which may have another size than the one asked for
        jaxpr = _jax.without_dead_code(staged.jaxpr)
        sites = list(walk_jaxpr(jaxpr))
        calls = tuple(call_at(site) for site in sites if communicates(site))
        shardings = (*staged.shardings, *staged.returned)
        found = clues(jaxpr, sites, staged.arrays, staged.names, shardings)
    sizes, notes = _sizes(staged, sites)
    is_spread, told = _needs_compiler(staged, jaxpr), None
    if compiled == "always" or (compiled == "for shardings" and (is_spread or topology)):
        told = _ask_compiler(staged, topology)
        calls, notes = (*calls, *told.calls), (*notes, *told.notes)
    notes = (*notes, *_partly_manual_notes(sites))
    n_flops, assumed = _of_one_device(flops(jaxpr), sizes, is_spread)
    if told is not None and told.flops is not None:
        n_flops, assumed = told.flops, ()
    return Observation(
        program=staged.program,
        mesh=sizes,
        calls=calls,
        clues=found,
        flops=n_flops,
        memory=told.memory if told else None,
        notes=(*notes, *assumed, *_count_notes(calls)),
        n_shard_maps=sum(site.name == "shard_map" for site in sites),
        n_unchecked=sum(
            site.name == "shard_map" and not site.eqn.params["check_vma"] for site in sites
        ),
    )


# -------------------------------------------------------------------------------- whose mesh it is


def _sizes(staged: StagedProgram, sites: Sequence[Site]) -> tuple[MeshSizes, tuple[str, ...]]:
    """Return the mesh that was given, or the program's own; the largest one, if it has several."""
    if staged.mesh is not None:
        return staged.sizes, ()
    shardings = (*staged.shardings, *staged.returned)
    placed = [s.mesh for s in shardings if isinstance(s, NamedSharding)]
    meshes = [*(mesh for site in sites for mesh in _meshes(site)), *placed]
    found = dict.fromkeys(tuple(mesh.shape.items()) for mesh in meshes if not mesh.empty)
    if not found:
        return (), ()
    largest = max(found, key=lambda sizes: (len(sizes), _n_devices(sizes)))
    if len(found) == 1:
        return largest, ()
    told = "; ".join(",".join(f"{name}={size}" for name, size in sizes) for sizes in found)
    return largest, (f"The program has {len(found)} meshes ({told}); the largest is shown.",)


def _n_devices(sizes: MeshSizes) -> int:
    n_devices = 1
    for _, size in sizes:
        n_devices *= size
    return n_devices


def _meshes(site: Site) -> list[Any]:
    if site.name == "shard_map":
        return [site.eqn.params["mesh"]] if not site.place.axes.manual else []
    return [sharding.mesh for sharding in shardings_asked_for(site.eqn.params)]


# -------------------------------------------------------------- what only the compiler can tell


def _needs_compiler(staged: StagedProgram, jaxpr: Any) -> bool:
    """Say whether arrays are sharded, by themselves or by the jit that takes and returns them."""
    is_returned = any(isinstance(s, NamedSharding) and any(s.spec) for s in staged.returned)
    return is_returned or is_left_to_the_compiler(jaxpr, staged.shardings)


def _ask_compiler(staged: StagedProgram, topology: str | None) -> Seen:
    # Here, since they are slow to import and rarely needed.
    from shardlab.tracing.compiler.inserted_collectives import observe_compiled
    from shardlab.tracing.compiler.tpu_topology import observe_on_topology

    if topology is None:
        return observe_compiled(staged)
    return observe_on_topology(staged, topology)


# --------------------------------------------------------------------------------- what to know


def _of_one_device(
    counted: Flops, sizes: MeshSizes, is_spread: bool
) -> tuple[int, tuple[str, ...]]:
    """Return the FLOPs of one device, and what was assumed of those outside of shard_maps."""
    notes = []
    if counted.has_while:
        notes.append(ONE_TURN)
    n_devices = _n_devices(sizes) if is_spread else 1
    share = 100 * counted.outside / max(counted.total, 1)
    if sizes and share >= 1:
        taken = f"spread evenly over {n_devices} devices" if is_spread else "done by every device"
        notes.append(f"FLOPs: {share:.0f} % stand outside of any shard_map, taken as {taken}.")
    return counted.total - counted.outside + -(-counted.outside // n_devices), tuple(notes)


def _partly_manual_notes(sites: Sequence[Site]) -> tuple[str, ...]:
    """Say which mesh axes the compiler may still shard the operands of calls over."""
    n_calls, free = 0, dict[str, None]()
    for site in filter(communicates, sites):
        axes = site.place.axes
        others = [n for n in axes.many(axes.sizes) if n not in axes.manual]
        n_calls += bool(others)
        free.update(dict.fromkeys(others))
    if not n_calls:
        return ()
    calls = "One call stands" if n_calls == 1 else f"{n_calls} calls stand"
    return (
        f"{calls} in a shard_map that leaves {', '.join(map(repr, free))} to the compiler: where "
        "it shards their operands over that too, they send less than listed.",
    )


def _count_notes(calls: Sequence[CollectiveCall]) -> tuple[str, ...]:
    n_unknown = sum(call.count is None for call in calls)
    if not n_unknown:
        return ()
    which = "One call stands" if n_unknown == 1 else f"{n_unknown} calls stand"
    return (f"{which} in a while loop: the bytes are those of one turn.",)
