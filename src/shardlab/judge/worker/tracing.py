"""A submission as a program of arrays alone: traced on a mesh, checked for hazards, exported."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.extend.core import Literal
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab._jax import inner_jaxprs, open_jaxpr
from shardlab._jax.axis_errors import convert_axis_error
from shardlab._jax.debug_calls import has_debug_calls, without_debug_calls
from shardlab.checks.check_program import check_program
from shardlab.collectives.call import CollectiveCall
from shardlab.collectives.program_flow import ProgramFlow
from shardlab.judge.protocol.reports import ExceptionReport, FindingReport, FunctionCall
from shardlab.judge.protocol.values import ArrayLeaf, unpack_value
from shardlab.judge.worker.error_reports import (
    SubmissionError,
    leaked_tracer_error,
    report_exception,
)
from shardlab.judge.worker.jax_overrides import eager_placement, single_device
from shardlab.judge.worker.loaded_submission import LoadedSubmission, array_result, build_arguments
from shardlab.sharding.spec import parse_spec
from shardlab.tracing.jaxpr_flow import read_jaxpr_flow
from shardlab.tracing.jaxpr_walk import walk_jaxpr
from shardlab.tracing.observation import Observation
from shardlab.tracing.observe import observe_staged
from shardlab.tracing.rejected_programs import find_rejection, full_tracebacks
from shardlab.tracing.stage import StagedProgram

_ANY_SIZE = 1 << 62  # bytes; the small arrays of an exercise may be replicated
Findings = tuple[FindingReport, ...]


class SubmissionRejected(Exception):
    """A program that cannot be run: the exception or the findings that say why."""

    def __init__(self, error: ExceptionReport | None, findings: Findings) -> None:
        super().__init__("the program cannot be run")
        self.error, self.findings = error, findings


@dataclass(frozen=True, kw_only=True)
class TracedSubmission:
    """A function of a submission, traced for one case."""

    function: Callable[..., Any]
    jitted: Any  # without debug calls
    printing_jaxpr: Any  # with them
    has_debug_calls: bool
    shapes: list[Any]
    mesh: Mesh | None
    findings: Findings
    flow: ProgramFlow
    n_unchecked: int
    calls: tuple[CollectiveCall, ...]
    jaxpr: Any

    def export_program(self) -> bytes:
        """Return the program as bytes. Raises `SubmissionRejected` if it needs this process."""
        n_devices = 1 if self.mesh is None else self.mesh.size
        try:
            with _tracing_context(self.mesh):
                exported = jax.export.export(self.jitted)(*self.shapes)
                if exported.nr_devices not in (1, n_devices):
                    raise _device_count_error(exported.nr_devices, n_devices)
                return bytes(exported.serialize())
        except BaseException as error:
            rejection = explain_rejection(error, self.function, self.mesh)
            if rejection.error and rejection.error.family == "callback":
                # The export fails long after the trace, so the traceback has no line of the
                # submission; the trace knows it.
                rejection.error = replace(rejection.error, line=_callback_line(self.jaxpr))
            raise rejection from None


def trace_submission(
    submission: LoadedSubmission, call: FunctionCall, mesh: Mesh | None
) -> TracedSubmission:
    """Return a function traced with shapes alone. Raises `SubmissionRejected`."""
    function = submission.find_function(call)
    program, shapes = create_program(function, call, mesh)
    jitted = jax.jit(program)
    try:
        with _tracing_context(mesh):
            traced = jitted.trace(*shapes)
            if len(traced.jaxpr.in_avals) != len(shapes):
                # More inputs than were passed: a tracer of another trace was captured.
                raise leaked_tracer_error()
            _reject_exported_calls(traced.jaxpr)
    except BaseException as error:
        raise explain_rejection(error, function, mesh) from None
    observation, findings = check_traced(call.function, traced, shapes)
    if any(finding.severity == "error" for finding in findings):
        raise SubmissionRejected(None, findings)
    is_printing = has_debug_calls(traced.jaxpr)
    printing_jaxpr = traced.jaxpr
    if is_printing:
        # From here on the program is the one without prints, so that they change no verdict. The
        # hazards above are those of the program as it is written: a collective that is called for
        # a print on one device alone blocks real devices, too.
        jitted = without_debug_calls(traced)
        with _tracing_context(mesh):
            traced = jitted.trace(*shapes)
        observation, findings = check_traced(call.function, traced, shapes)
    return TracedSubmission(
        function=function,
        jitted=jitted,
        printing_jaxpr=printing_jaxpr,
        has_debug_calls=is_printing,
        shapes=shapes,
        mesh=mesh,
        findings=findings,
        flow=read_jaxpr_flow(traced.jaxpr),
        n_unchecked=observation.n_unchecked,
        calls=observation.calls,
        jaxpr=traced.jaxpr,
    )


def _reject_exported_calls(jaxpr: Any) -> None:
    """Reject a program that was exported before: its shard_maps have lost how they were written."""
    inner, _ = open_jaxpr(jaxpr)
    for eqn in inner.eqns:
        if eqn.primitive.name == "call_exported":
            raise SubmissionError(
                "exported",
                "The submission calls a program that it has exported with jax.export, so the judge "
                "cannot see how it is written.",
                "call the function itself.",
            )
        for body in inner_jaxprs(eqn.params):
            _reject_exported_calls(body)


def check_traced(name: str, traced: Any, shapes: list[Any]) -> tuple[Observation, Findings]:
    """Return what a traced program does, and the findings about it."""
    staged = StagedProgram(
        program=name, traced=traced, mesh=None, arrays=tuple(shapes), trace_again=lambda: None
    )
    # Compiling here would cost as much as the whole case, in the process that is not trusted.
    observation = observe_staged(staged, compiler_use="never")
    return observation, _report_findings(observation)


def create_program(
    function: Callable[..., Any], call: FunctionCall, mesh: Mesh | None
) -> tuple[Callable[..., Any], list[Any]]:
    """Return the call as a function of arrays alone, with their shapes and shardings."""
    leaves: list[tuple[ArrayLeaf, str]] = []

    def collect_leaf(leaf: ArrayLeaf) -> ArrayLeaf:
        leaves.append((leaf, call.input_specs[leaf.number] if call.input_specs else "P()"))
        return leaf

    unpack_value(call.packed_inputs, collect_leaf)

    def program(*arrays: Any) -> Any:
        # Inside of the traced function: a cached trace would otherwise keep the original ones.
        with eager_placement(mesh):
            arguments = build_arguments(call, mesh, lambda leaf: arrays[leaf.number])
            return array_result(call.function, function(*arguments))

    # JAX names the program in its messages; they must name the submission's function.
    program.__name__ = program.__qualname__ = call.function
    # `inspect` reads this attribute, which mypy does not know.
    program.__signature__ = _array_signature(call.packed_inputs)  # type: ignore[attr-defined]
    leaves.sort(key=lambda pair: pair[0].number)
    return program, [_abstract_array(leaf, input_sharding(spec, mesh)) for leaf, spec in leaves]


def _array_signature(packed_inputs: Mapping[str, Any]) -> inspect.Signature:
    """Return one parameter per array, so that JAX's messages name the submission's arguments."""
    names: dict[int, str] = {}
    for name, value in packed_inputs.items():
        numbers = _array_numbers(value)
        if len(numbers) == 1:
            names[numbers[0]] = name
        else:
            names.update({number: f"{name}_{i}" for i, number in enumerate(numbers)})
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(names[i], kind) for i in sorted(names)])


def _array_numbers(packed: Any) -> list[int]:
    numbers: list[int] = []
    unpack_value(packed, lambda leaf: numbers.append(leaf.number))
    return numbers


def input_sharding(spec: str, mesh: Mesh | None) -> NamedSharding | None:
    """Return how an input is sharded when the function receives it."""
    if mesh is None:
        return None
    return NamedSharding(mesh, PartitionSpec(*parse_spec(spec).entries))


def _abstract_array(leaf: ArrayLeaf, sharding: NamedSharding | None) -> Any:
    dtype = jax.dtypes.canonicalize_dtype(jnp.dtype(leaf.dtype))
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)


@contextlib.contextmanager
def _tracing_context(mesh: Mesh | None) -> Iterator[None]:
    """Keep JAX's own frames in tracebacks, which tell whose mistake it is; hide other devices."""
    with full_tracebacks(), contextlib.ExitStack() as stack:
        if mesh is None:
            stack.enter_context(single_device())
        yield


def _device_count_error(n_program: int, n_case: int) -> SubmissionError:
    return SubmissionError(
        "own_devices",
        f"The program uses {n_program} devices; the mesh of this case has {n_case}.",
        "use the mesh that is passed to the function; if there is none, a mesh of one device: "
        "Mesh(jax.devices()[:1], ('data',)).",
    )


def _callback_line(jaxpr: Any) -> int | None:
    """Return the line of the first call back into Python."""
    for site in walk_jaxpr(jaxpr):
        if "callback" in site.name and not site.name.startswith("debug_"):
            return site.source.line or None
    return None


def explain_rejection(error: BaseException, function: Any, mesh: Mesh | None) -> SubmissionRejected:
    """Return an exception as a rejection, with a finding if JAX's message is a known one."""
    axis_sizes = dict(mesh.shape) if mesh is not None else {}
    pattern = find_rejection(convert_axis_error(error, axis_sizes) or error, function)
    if pattern is None or pattern.facts["family"] == "other":
        return SubmissionRejected(report_exception(error), ())
    observation = Observation(program="", mesh=(), patterns=(pattern,))
    return SubmissionRejected(report_exception(error), _report_findings(observation))


def _report_findings(observation: Observation) -> Findings:
    findings = check_program(observation, replicated_bytes=_ANY_SIZE)
    return tuple(map(FindingReport.from_finding, findings))


# ------------------------------------------------------------------------------ outside of any jit

_JIT_PRIMITIVES = ("jit", "pjit")
_PLACEMENT_PRIMITIVES = ("sharding_constraint", "shard_map")


def eager_bytes(jaxpr: Any) -> int:
    """Return the bytes of the largest array that one operation creates unsharded on one device.

    The judge traces a submission, but its author calls it without a jit. Then each operation at the
    top level of the trace runs by itself: computed from values that have no sharding yet, an array
    is created in full on the first device, however soon it is sharded afterwards. A jit of the
    submission's own is one operation, and what is sharded inside it never exists unsharded.
    """
    placed = set(jaxpr.jaxpr.invars)
    # What was computed at import, in another thread or by NumPy is a constant of the trace.
    largest = max(map(_array_bytes, _constants(jaxpr)), default=0)
    for eqn in jaxpr.jaxpr.eqns:
        if any(not isinstance(var, Literal) and var in placed for var in eqn.invars):
            placed.update(eqn.outvars)
            continue
        for var, is_placed in zip(eqn.outvars, _result_placements(eqn), strict=True):
            if is_placed:
                placed.add(var)
            else:
                largest = max(largest, _array_bytes(var.aval))
    return largest


def _constants(jaxpr: Any) -> Iterator[Any]:
    inner, consts = open_jaxpr(jaxpr)
    yield from (const for const in consts if hasattr(const, "dtype"))
    for eqn in inner.eqns:
        for body in inner_jaxprs(eqn.params):
            yield from _constants(body)


def _result_placements(eqn: Any) -> list[bool]:
    """Return for each result of an operation whether it has a sharding."""
    if eqn.primitive.name not in _JIT_PRIMITIVES:
        return [eqn.primitive.name in _PLACEMENT_PRIMITIVES] * len(eqn.outvars)
    if _has_placement(eqn.params["jaxpr"].jaxpr):
        return [True] * len(eqn.outvars)
    shardings = eqn.params["out_shardings"]
    return [isinstance(sharding, jax.sharding.Sharding) for sharding in shardings]


def _has_placement(jaxpr: Any) -> bool:
    """Return whether an operation inside a jit sets a sharding."""
    return any(
        eqn.primitive.name in _PLACEMENT_PRIMITIVES
        or (eqn.primitive.name in _JIT_PRIMITIVES and any(_result_placements(eqn)))
        for eqn in jaxpr.eqns
    )


def _array_bytes(aval: Any) -> int:
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        return 0  # random keys have no itemsize
    return int(aval.size) * int(aval.dtype.itemsize)
