"""`trace` and `check`: observe a program, decide what is wrong, run it on meshes, compare, report.

This is the only module that knows both halves: `tracing` and `analysis.mesh_runs` observe programs
and decide nothing, `checks` decides and never runs a program.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from shardlab._text.nearest import nearest_name
from shardlab._text.units import bytes_text
from shardlab.analysis.project_config import read_config
from shardlab.checks.check_program import check_program
from shardlab.checks.compare_runs import default_test_meshes
from shardlab.checks.rejection_findings import raise_if_rejected
from shardlab.errors import InvalidType
from shardlab.findings.finding import Finding
from shardlab.findings.report import Report, most_severe_first
from shardlab.sharding.mesh import Mesh, mesh_text, parse_mesh
from shardlab.tracing.observation import Observation
from shardlab.tracing.trace import Trace, make_trace

if TYPE_CHECKING:
    from shardlab.analysis.mesh_runs import MeshRunner, Rewrite
    from shardlab.checks.run_comparison import RunComparison
    from shardlab.findings.scaled_proof import ScaledProof

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")
_lock = threading.RLock()


def _one_at_a_time(function: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Check the options of `trace` or `check`, and run one call at a time.

    Both replace functions inside JAX, which all threads share, and put them back afterwards.
    """
    parameters = inspect.signature(function).parameters.items()
    options = [name for name, parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]

    @functools.wraps(function)
    def locked_call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        check_call(function.__name__, args, kwargs, options)
        with _lock:
            return function(*args, **kwargs)

    return locked_call


@_one_at_a_time
def trace(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    topology: str | None = None,
    memory: bool = False,
    quick: bool = False,
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

    An argument is an array, a `jax.ShapeDtypeStruct` or text; without a mesh the program's own is
    used. If arrays are sharded outside shard_map, XLA for CPU compiles the program in a separate
    process to find the collectives it inserts; with a `topology` (`v5e:16x16`) XLA for TPU does,
    which the extra `shardlab[tpu]` installs. With `memory` every program is compiled, for the
    memory per device. With `quick` nothing is compiled: the inserted collectives are those of
    Shardy's passes, in milliseconds. A program that JAX rejects raises `ProgramRejected`, with the
    finding.
    """
    from shardlab.tracing.observe import CompilerUse, observe

    if quick and (memory or topology):
        raise InvalidType(
            "A quick trace does not compile the program.",
            where=f"trace(..., quick=True, memory={memory}, topology={topology!r})",
            fix="leave out quick, or leave out memory and topology.",
        )
    compiler_use: CompilerUse = "for shardings"
    if memory or quick:
        compiler_use = "always" if memory else "quick"
    observation = observe(f, args, mesh, compiler_use=compiler_use, topology=topology)
    config = read_config(_source_file(f))
    raise_if_rejected(observation)
    findings = check_program(observation, replicated_bytes=config.replicated_bytes)
    remaining, _ = config.suppress(findings)
    return make_trace(observation, remaining)


@_one_at_a_time
def check(
    f: Callable[..., Any],
    *args: Any,
    mesh: Any = None,
    meshes: Sequence[Any] | None = None,
    grads: bool = True,
    run: bool = True,
    reference: Callable[..., Any] | None = None,
    scaled: bool | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Report:
    """Return what is wrong with `f(*args)` that a single device does not show.

    The program is traced on the mesh (the largest of several). Unless that finds an error or `run`
    is False, it then runs on one virtual device and on each mesh, and the results are compared.
    Without a mesh the program's own axes get the sizes 1, 2, 3, 4, 8, or 2x4, 4x2 and so on.

    With a `reference`, a function of the same arguments without a mesh, the results on each mesh
    (or on the program's own) are compared with what it returns, instead of one device.

    A mesh that is too large to run is scaled down: the report's `scaled` has the obligations that
    must hold for the result to carry over, each checked. `scaled` forces (True) or forbids that.

    >>> import jax
    >>> from jax.sharding import PartitionSpec as P
    >>> total = jax.shard_map(
    ...     lambda x: x.sum(), in_specs=P("data"), out_specs=P(), check_vma=False
    ... )
    >>> check(total, "f32[12]", mesh="data=4").findings[0].cause
    'missing_psum'
    """
    from shardlab.tracing.observe import observe

    report_progress = on_progress or (lambda text: None)
    requested = [parse_mesh(item) for item in list_meshes(mesh, meshes)]
    _check_reference(reference)
    config = read_config(_source_file(f))

    # Observe: trace the program once, on the largest mesh.
    report_progress("tracing the program")
    # Most patterns show on any mesh; the largest shows the most bytes and groups.
    largest = max(requested, key=lambda mesh: mesh.n_devices, default=None)
    observation = observe(f, args, largest, compiler_use="never")

    # Decide: what the traced program alone proves.
    static_findings = check_program(observation, replicated_bytes=config.replicated_bytes)
    axis_names = [name for name, _ in observation.mesh]
    test_meshes = requested or (default_test_meshes(axis_names) if axis_names else [])
    if reference is not None and not requested and axis_names:
        # The mesh may be part of what the program computes, and its own is the right one.
        test_meshes = [Mesh(list(observation.mesh))]
    # A suppressed error does not stop the runs: the user says that it is no error.
    errors = [item for item in config.suppress(static_findings)[0] if item.severity == "error"]
    reason = _reason_not_to_run(observation, errors, test_meshes, run)
    if not reason and reference is None and _is_mesh_independent(observation, f, args, test_meshes):
        reason = _ONLY_JIT
    findings = list(static_findings)
    notes: tuple[str, ...] = (reason,)
    meshes_checked: tuple[str, ...] = (mesh_text(observation.mesh),) if observation.mesh else ()
    is_compared = True
    proofs: tuple[ScaledProof, ...] = ()
    if not reason:
        # Run on meshes and compare. Imported here because it loads NumPy, which tracing does not.
        from shardlab.checks.compare_runs import merge_findings

        program = _CheckedProgram(f, args, reference, grads, report_progress)
        if not requested and observation.mesh and (scaled or program.has_large_arguments):
            test_meshes = requested = [Mesh(list(observation.mesh))]
        runs = _run_or_scale(program, test_meshes, requested, scaled)
        findings = merge_findings(static_findings, runs.findings)
        notes, is_compared, proofs = runs.notes, runs.is_compared, runs.proofs
        meshes_checked = runs.meshes

    # Report.
    remaining, suppressed = config.suppress(most_severe_first(findings))
    return Report(
        findings=remaining,
        program=observation.program,
        meshes=meshes_checked,
        notes=notes,
        suppressed=suppressed,
        is_compared=is_compared,
        scaled=proofs,
    )


@dataclasses.dataclass(frozen=True)
class _CheckedProgram:
    """A program and how it is compared."""

    f: Callable[..., Any]
    args: Sequence[Any]
    reference: Callable[..., Any] | None
    grads: bool
    report_progress: Callable[[str], None]

    @property
    def has_large_arguments(self) -> bool:
        from shardlab.analysis.run_arguments import count_argument_bytes
        from shardlab.analysis.scaling.scaled_check import MAX_ARGUMENT_BYTES

        return count_argument_bytes(self.args) > MAX_ARGUMENT_BYTES

    def compare(
        self, args: Sequence[Any], test_meshes: Sequence[Mesh], requested: Sequence[Mesh]
    ) -> tuple[RunComparison, tuple[str, ...]]:
        """Return the comparison with these arguments, and the meshes that were compared."""
        from shardlab.analysis.mesh_runs import MeshRunner

        def make_runner(rewrite: Rewrite = "") -> MeshRunner:
            return MeshRunner(self.f, args, self.report_progress, self.reference, rewrite=rewrite)

        return _compare_on_meshes(
            make_runner, test_meshes, requested, self.grads, self.report_progress
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _RunResults:
    """What runs on meshes, full or scaled down, showed."""

    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    meshes: tuple[str, ...] = ()
    is_compared: bool = True
    proofs: tuple[ScaledProof, ...] = ()


def _run_or_scale(
    program: _CheckedProgram,
    test_meshes: Sequence[Mesh],
    requested: Sequence[Mesh],
    scaled: bool | None,
) -> _RunResults:
    """Run on each mesh that is not too large, and check the others on scaled-down meshes."""
    from shardlab.analysis.run_arguments import count_argument_bytes
    from shardlab.analysis.scaling.scaled_check import check_large_mesh, find_large_meshes

    large_meshes = list(find_large_meshes(program.f, program.args, requested, scaled))
    scaled_down = [large.mesh for large in large_meshes]
    to_run = [mesh for mesh in test_meshes if mesh not in scaled_down]
    results = _RunResults(is_compared=False)
    if to_run and program.has_large_arguments:
        n_bytes = count_argument_bytes(program.args)
        note = (
            f"The program was traced but not run: its arguments take {bytes_text(n_bytes)}. Pass "
            "smaller ones with the same ranks to compare values."
        )
        results = _RunResults(notes=(note,), meshes=tuple(map(str, to_run)), is_compared=False)
    elif to_run:
        comparison, meshes = program.compare(program.args, to_run, requested)
        results = _RunResults(
            findings=comparison.findings,
            notes=comparison.notes,
            meshes=meshes,
            is_compared=bool(meshes),
        )
    for large in large_meshes:
        scaled_result = check_large_mesh(
            program.f,
            program.args,
            large,
            lambda args, mesh: program.compare(args, [mesh], [mesh]),
            program.report_progress,
        )
        proof = scaled_result.proof
        results = dataclasses.replace(
            results,
            findings=(*results.findings, *scaled_result.findings),
            notes=(*results.notes, *scaled_result.notes),
            meshes=(*results.meshes, proof.mesh),
            is_compared=proof.carries_over and (results.is_compared or not to_run),
            proofs=(*results.proofs, proof),
        )
        to_run = [*to_run, large.mesh]
    return results


def _compare_on_meshes(
    make_runner: Callable[..., MeshRunner],
    test_meshes: Sequence[Mesh],
    requested: Sequence[Mesh],
    grads: bool,
    report_progress: Callable[[str], None],
) -> tuple[RunComparison, tuple[str, ...]]:
    """Return the comparison, explained if possible, and the meshes whose results were compared.

    What agrees may agree because of rounding, or because it was not compared. So a program with
    narrow floats also runs in float32, and one with other random numbers on each mesh with
    constants in their place.
    """
    runner = make_runner()
    comparison, meshes_checked = _run_and_compare(runner, test_meshes, grads, bool(requested))
    comparison, meshes_checked = _explain(runner, comparison, meshes_checked, requested, grads)
    rewrites: tuple[Rewrite, ...] = ("float32", "fixed_draws")
    for rewrite in rewrites:
        is_needed = runner.has_narrow_floats if rewrite == "float32" else comparison.has_own_draws
        if comparison.agrees and meshes_checked and is_needed:
            report_progress(f"running with {rewrite.replace('_', ' ')}")
            rewritten = make_runner(rewrite)
            changed = _compare_rewritten(rewritten, test_meshes, grads)
            changed, _ = _explain(rewritten, changed, meshes_checked, requested, grads)
            # An index drawn from the size of a shard is another one on each mesh, also with
            # constants: without a proven cause that is no finding.
            is_certain = rewrite == "float32" or not changed.is_unexplained
            if is_certain and not changed.agrees:
                comparison = changed.of_rewritten(rewrite)
    return comparison, meshes_checked


def _run_and_compare(
    runner: MeshRunner, meshes: Sequence[Mesh], grads: bool, are_requested: bool
) -> tuple[RunComparison, tuple[str, ...]]:
    """Return the comparison of runs on these meshes, and the meshes whose results were compared."""
    from shardlab.checks.compare_runs import check_runs

    runs = runner.run_on_meshes(meshes)
    comparison = check_runs(runs, are_requested=are_requested)
    # Gradients take longer than values, and the gradient of a wrong value is wrong anyway.
    if grads and comparison.agrees and runs.compared_on:
        runs = runner.add_gradients()
        comparison = check_runs(runs, are_requested=are_requested)
    return comparison, runs.compared_on


def _explain(
    runner: MeshRunner,
    comparison: RunComparison,
    meshes_checked: tuple[str, ...],
    requested: Sequence[Mesh],
    grads: bool,
) -> tuple[RunComparison, tuple[str, ...]]:
    """Return the comparison with a cause, if more meshes or a repair prove one, and the meshes."""
    if requested and not runner.has_reference_function and comparison.is_unexplained:
        # One mesh size fits many causes; a few more sizes may tell them apart.
        more_meshes = default_test_meshes(requested[0].axis_names)
        wider, meshes_checked = _run_and_compare(runner, more_meshes, grads, False)
        comparison = comparison.explained_by(wider)
    if comparison.is_unexplained:
        comparison = _test_causes(runner, comparison)
    return comparison, meshes_checked


def _compare_rewritten(runner: MeshRunner, meshes: Sequence[Mesh], grads: bool) -> RunComparison:
    """Return the comparison of runs of a changed program; empty if it cannot be changed so."""
    from shardlab.checks.run_comparison import RunComparison

    try:
        return _run_and_compare(runner, meshes, grads, False)[0]
    except InvalidType:
        return RunComparison()  # The reference cannot be changed.


def _check_reference(reference: Any) -> None:
    if reference is not None and not callable(reference):
        raise InvalidType(
            f"The reference is {reference!r:.60}, which is not a function.",
            where=f"check(..., reference={reference!r:.60})",
            fix="pass a function of the same arguments that returns the right result.",
        )


def _test_causes(runner: MeshRunner, comparison: RunComparison) -> RunComparison:
    """Return the comparison with a cause, if repairing one operation makes all values right."""
    from shardlab.checks.mesh_dependence import explain_by_repairs, is_repaired, repairable_paths

    runs = runner.collect_runs()
    paths = repairable_paths(runs)
    repairs = runner.find_repairs(paths, lambda values: is_repaired(runs, values)) if paths else []
    return explain_by_repairs(runs, repairs, comparison)


def _is_mesh_independent(
    observation: Observation,
    f: Callable[..., Any],
    args: Sequence[Any],
    test_meshes: Sequence[Mesh],
) -> bool:
    """Return whether XLA keeps the values the same on every mesh: a jit without a shard_map.

    Unless it has the number of devices in it, as in `grads / jax.device_count()`.
    """
    if observation.n_shard_maps:
        return False
    from shardlab.analysis.mesh_trace import depends_on_mesh

    return not depends_on_mesh(f, args, max(test_meshes, key=lambda mesh: mesh.n_devices))


_ONLY_JIT = (
    "The program has no shard_map, and XLA keeps the values of a jit the same on every "
    "mesh: it was traced but not run."
)


def _reason_not_to_run(
    observation: Observation,
    errors: Sequence[Finding],
    test_meshes: Sequence[Mesh],
    run: bool,
) -> str:
    """Return why a program is traced but not run, or ''."""
    if not run:
        return "The program was traced but not run: values were not compared."
    if not test_meshes:
        return "The program has no mesh: there is nothing to compare."
    if errors:
        return f"The program was not run because of {errors[0].code}."
    return ""


# ------------------------------------------------------------------------------ options of a call


def check_call(
    command: str, args: Sequence[Any], keywords: Mapping[str, Any], options: Sequence[str]
) -> None:
    """Raise `InvalidType` for an unknown option, or if the first argument is not a function.

    >>> check_call("trace", (max, "f32[8]"), {"mesh": "data=4"}, ["mesh"])
    """
    for name in keywords:
        if name not in options:
            suggestion = nearest_name(name, options)
            hint = f" Did you mean {suggestion!r}?" if suggestion else ""
            raise InvalidType(
                f"{command}() has no option {name!r}; its options are {', '.join(options)}.",
                where=f"{command}(..., {name}={keywords[name]!r:.60})",
                fix="pass a keyword of the function itself with functools.partial"
                f"(f, {name}=...).{hint}",
            )
    if args and not callable(args[0]):
        raise InvalidType(
            f"The first argument is {args[0]!r:.60}, which is not a function.",
            where=f"{command}({args[0]!r:.60}, ...)",
            fix=f"pass the function first, then its arguments: {command}(f, 'f32[8,6]').",
        )


def list_meshes(mesh: Any, meshes: Any) -> list[Any]:
    """Return the meshes of the options `mesh` and `meshes`; either may be a single mesh.

    >>> list_meshes(None, "data=2,model=4")
    ['data=2,model=4']
    """
    if mesh is not None and meshes is not None:
        raise InvalidType(
            "Both mesh and meshes were passed.",
            where=f"check(..., mesh={mesh!r:.60}, meshes={meshes!r:.60})",
            fix="pass mesh for one mesh, or meshes for several.",
        )
    if meshes is None:
        return [] if mesh is None else [mesh]
    # A jax.sharding.Mesh has a shape, a list of meshes has none.
    is_single = isinstance(meshes, (str, Mesh, Mapping)) or hasattr(meshes, "shape")
    return [meshes] if is_single else list(meshes)


def _source_file(f: Any) -> str | None:
    """Return the file that defines a function; its project's configuration applies."""
    try:
        return inspect.getsourcefile(inspect.unwrap(f))
    except TypeError:
        return None
