"""`trace` and `check`: the engine looks, the checks decide.

The only file that knows both: code that runs a program never says whether it is right, and code
that says so never runs it.

What a person gives to `trace` and `check`, refused at once where it cannot be meant so.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from shardlab.analysis.project_config import read_config
from shardlab.checks.compare_runs import default_test_meshes
from shardlab.checks.rejection_findings import raise_if_rejected
from shardlab.checks.check_program import check_program
from shardlab.errors import InvalidType
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, most_severe_first
from shardlab.sharding.mesh import Mesh, parse_mesh
from shardlab.tracing.observation import Observation
from shardlab.tracing.trace import Trace

if TYPE_CHECKING:
    from shardlab.analysis.mesh_runs import Bench
    from shardlab.checks.mesh_dependence import RunComparison


def check_given(
    command: str, args: Sequence[Any], keywords: Mapping[str, Any], options: Sequence[str]
) -> None:
    """Refuse a keyword that is no option, and anything but a function in the first place.

    >>> check_given("trace", (max, "f32[8]"), {"mesh": "data=4"}, ["mesh"])
    """
    for name in keywords:
        if name not in options:
            close = get_close_matches(name, options, n=1)
            hint = f", or did you mean {close[0]!r}?" if close else "."
            raise InvalidType(
                f"{command}() has no option {name!r}; its options are {', '.join(options)}.",
                where=f"{command}(..., {name}={keywords[name]!r:.60})",
                fix="give a keyword of the function itself with functools.partial"
                f"(f, {name}=...){hint}",
            )
    if args and not callable(args[0]):
        raise InvalidType(
            f"The first argument is {args[0]!r:.60}, and not a function.",
            where=f"{command}({args[0]!r:.60}, ...)",
            fix=f"give the function first and its arguments after it: {command}(f, 'f32[8,6]').",
        )


def meshes_given(mesh: Any, meshes: Any) -> list[Any]:
    """Return the meshes that are meant; a single one may stand in the place of several.

    >>> meshes_given(None, "data=2,model=4")
    ['data=2,model=4']
    """
    if mesh is not None and meshes is not None:
        raise InvalidType(
            "Both mesh and meshes were given.",
            where=f"check(..., mesh={mesh!r:.60}, meshes={meshes!r:.60})",
            fix="give mesh for one mesh, or meshes for all of them.",
        )
    if meshes is None:
        return [] if mesh is None else [mesh]
    # A jax.sharding.Mesh has a shape; a list of meshes has none.
    is_one = isinstance(meshes, (str, Mesh, Mapping)) or hasattr(meshes, "shape")
    return [meshes] if is_one else list(meshes)


_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")
_turn = threading.RLock()


def _in_turn(look: Callable[_Given, _Result]) -> Callable[_Given, _Result]:
    """Let threads look at programs one after the other: all of them see the one JAX it is done to.

    What is replaced in JAX for one mesh must be put back before another one's is replaced.
    """

    options = [n for n, p in inspect.signature(look).parameters.items() if p.kind is p.KEYWORD_ONLY]

    @functools.wraps(look)
    def alone(*args: _Given.args, **kwargs: _Given.kwargs) -> _Result:
        check_given(look.__name__, args, kwargs, options)
        with _turn:
            return look(*args, **kwargs)

    return alone


@_in_turn
def trace(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    topology: str | None = None,
    memory: bool = False,
) -> Trace:
    """Return what `f(*args)` communicates on a mesh, without running it.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> total = jax.shard_map(
    ...     lambda x: jax.lax.psum(x.sum(), "data"), in_specs=P("data"), out_specs=P()
    ... )
    >>> call, = trace(total, "f32[4096]", mesh="data=512").collectives
    >>> call.op, call.mesh_axes, call.payload_bytes, call.wire_bytes, call.count
    ('psum', ('data',), 4, 8, 1)

    An argument is an array, a `jax.ShapeDtypeStruct` or text; without a mesh the program's own
    counts. For arrays that are sharded outside of shard_map the compiler is asked what it inserts:
    XLA for CPU, in a process of its own, or with a `topology` (`v5e:16x16`) that of TPUs, which the
    extra `shardlab[tpu]` brings. With `memory` the compiler is asked of every program, for what
    one device holds. What JAX refuses raises `ProgramRejected`, with the finding in its words.
    """
    from shardlab.tracing.observe import CompilerUse, observe

    asked: CompilerUse = "always" if memory else "for shardings"
    seen = observe(f, args, mesh, compiled=asked, topology=topology)
    config = read_config(_home(f))
    raise_if_rejected(seen)
    findings = check_program(seen, replicated_bytes=config.replicated_bytes)
    return Trace(
        program=seen.program,
        mesh=seen.mesh,
        collectives=seen.calls,
        findings=config.silence(findings)[0],
        flops=seen.flops,
        memory=seen.memory,
        notes=seen.notes,
    )


@_in_turn
def check(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    meshes: Sequence[Any] | None = None,
    grads: bool = True,
    run: bool = True,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Return what is wrong with `f(*args)` that one device would not show.

    The program is read on the mesh given (the largest of several), and then, unless an error is
    found by reading or `run` is False, run on one virtual device and on each mesh, and compared.
    Without a mesh the program's own axes get the sizes 1, 2, 3, 4, 8, or 2x4, 4x2 and their like.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> total = jax.shard_map(
    ...     lambda x: x.sum(), in_specs=P("data"), out_specs=P(), check_vma=False
    ... )
    >>> check(total, "f32[12]", mesh="data=4").findings[0].cause
    'missing_psum'
    """
    from shardlab.tracing.observe import observe

    tell = on_progress or (lambda text: None)
    given = [parse_mesh(each) for each in meshes_given(mesh, meshes)]
    tell("reading the program")
    largest = max(given, key=lambda each: each.n_devices, default=None)
    seen = observe(f, args, largest, compiled="never")
    config = read_config(_home(f))
    static = check_program(seen, replicated_bytes=config.replicated_bytes)
    tried = given or (default_test_meshes([name for name, _ in seen.mesh]) if seen.mesh else [])
    unsilenced, _ = config.silence(static)
    notes, findings = _unrun(seen, unsilenced, tried, run, args), list(static)
    where: tuple[str, ...] = (_text(parse_mesh(seen.mesh)),) if seen.mesh else ()
    is_compared = True
    if not notes:
        # Here, since it brings NumPy in: reading a program is quicker without.
        from shardlab.analysis.mesh_runs import Bench
        from shardlab.checks.compare_runs import merge_findings

        bench = Bench(f, args, tell)
        compared, where = _compared(bench, tried, grads, bool(given))
        if given and compared.is_unexplained:
            # One size fits many causes; a few more sizes may tell them apart.
            more, where = _compared(bench, default_test_meshes(given[0].axis_names), grads, False)
            compared = compared.explained_by(more)
        notes, findings = compared.notes, merge_findings(static, compared.findings)
        is_compared = bool(where)
    left, silenced = config.silence(most_severe_first(findings))
    return Report(
        findings=left,
        program=seen.program,
        meshes=where,
        notes=notes,
        silenced=silenced,
        is_compared=is_compared,
    )


def _compared(
    bench: Bench, meshes: Sequence[Mesh], grads: bool, are_given: bool
) -> tuple[RunComparison, tuple[str, ...]]:
    """Return what runs on these meshes show, and on which ones something was compared.

    Gradients take longer than values, and those of wrong values are wrong for the same reason.
    """
    from shardlab.checks.compare_runs import check_runs

    runs = bench.run(meshes)
    compared = check_runs(runs, are_given=are_given)
    if grads and compared.agrees and runs.compared_on:
        runs = bench.differentiate()
        compared = check_runs(runs, are_given=are_given)
    return compared, runs.compared_on


def _home(f: Any) -> str | None:
    """Return the file of a program, near which its configuration is."""
    try:
        return inspect.getsourcefile(inspect.unwrap(f))
    except TypeError:
        return None


# Beyond this a run on one device takes minutes, and all of this machine's memory.
_MOST_BYTES = 2**30


def _unrun(
    seen: Observation,
    static: Sequence[Finding],
    tried: Sequence[Mesh],
    run: bool,
    args: Sequence[Any],
) -> tuple[str, ...]:
    """Say why a program is read and not run; nothing where it is."""
    if not run:
        return ("The program was read and not run: values were not compared.",)
    if not tried:
        return ("The program has no mesh: there is nothing to compare.",)
    errors = [found.code for found in static if found.severity == "error"]
    if errors:
        return (f"The program was not run, since reading it gave {errors[0]}.",)
    if not seen.n_shard_maps:
        return (
            "The program has no shard_map, and the compiler keeps the values of a jit the same on "
            "every mesh: it was read and not run.",
        )
    from shardlab.analysis.run_arguments import n_bytes

    if n_bytes(args) > _MOST_BYTES:
        return (
            f"The program was read and not run: its arguments take {n_bytes(args):,} bytes. Give "
            "smaller ones, of the same ranks, to compare values.",
        )
    return ()


def _text(mesh: Mesh) -> str:
    return ",".join(f"{name}={size}" for name, size in mesh.shape.items())
