"""An answer as a program of arrays alone: traced on a mesh, looked at for hazards, exported."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab._jax.axis_errors import convert_axis_error
from shardlab.checks.check_program import check_program
from shardlab.collectives.call import CollectiveCall
from shardlab.judge.protocol.values import ArrayLeaf, unpack
from shardlab.judge.worker.errors import AnswerError, leaked, told
from shardlab.judge.worker.host_mesh import one_device
from shardlab.judge.worker.result_tree import result_of_arrays
from shardlab.judge.worker.submission import Submission, arguments
from shardlab.judge.worker.traced_placement import placing_where_traced
from shardlab.sharding.spec import parse_spec
from shardlab.tracing.jaxpr_walk import walk_jaxpr
from shardlab.tracing.observation import Observation
from shardlab.tracing.observe import observe_staged
from shardlab.tracing.rejected_programs import find_rejection, full_tracebacks
from shardlab.tracing.stage import StagedProgram

_ANY_SIZE = 1 << 62  # a small array left whole is no finding in an exercise
Findings = list[dict[str, Any]]


class Stopped(Exception):
    """A program that cannot be run: the error and the findings that say why."""

    def __init__(self, error: dict[str, Any] | None, findings: Findings) -> None:
        super().__init__("the program cannot be run")
        self.error, self.findings = error, findings

    @property
    def header(self) -> dict[str, Any]:
        given = {} if self.error is None else {"error": self.error}
        return {**given, "findings": self.findings}


@dataclass(frozen=True, kw_only=True)
class Traced:
    """An answer traced for one case."""

    name: str
    function: Callable[..., Any]
    jitted: Any
    shapes: list[Any]
    mesh: Mesh | None
    findings: Findings
    n_shard_maps: int
    calls: tuple[CollectiveCall, ...]
    jaxpr: Any
    n_unchecked: int = 0

    def export(self) -> bytes:
        """Return the program as bytes. Raises `Stopped` where it cannot leave this process."""
        n_devices = 1 if self.mesh is None else self.mesh.size
        try:
            with _whole(self.mesh):
                exported = jax.export.export(self.jitted)(*self.shapes)
                if exported.nr_devices not in (1, n_devices):
                    raise _other_devices(exported.nr_devices, n_devices)
                return bytes(exported.serialize())
        except (Exception, SystemExit) as error:
            stop = stopped(error, self.function, self.mesh)
            if stop.error and stop.error["family"] == "callback":
                stop.error["line"] = _callback_line(self.jaxpr)
            raise stop from None


def trace(submission: Submission, asked: Mapping[str, Any], mesh: Mesh | None) -> Traced:
    """Return an answer traced with shapes alone. Raises `Stopped` where that already is wrong."""
    function = submission.function(asked)
    program, shapes = program_of(function, asked, mesh)
    jitted = jax.jit(program)
    try:
        with _whole(mesh):
            traced = jitted.trace(*shapes)
            if len(traced.jaxpr.in_avals) != len(shapes):
                raise leaked()  # what is not given comes from another trace
    except (Exception, SystemExit) as error:
        raise stopped(error, function, mesh) from None
    seen, findings = look(asked["function"], traced, shapes)
    if any(found["severity"] == "error" for found in findings):
        raise Stopped(None, findings)
    return Traced(
        name=asked["function"],
        function=function,
        jitted=jitted,
        shapes=shapes,
        mesh=mesh,
        findings=findings,
        n_shard_maps=seen.n_shard_maps,
        calls=seen.calls,
        jaxpr=traced.jaxpr,
        n_unchecked=seen.n_unchecked,
    )


def look(name: str, traced: Any, shapes: list[Any]) -> tuple[Observation, Findings]:
    """Return what a traced program does, and what our checks say of it."""
    staged = StagedProgram(
        program=name, traced=traced, mesh=None, arrays=tuple(shapes), trace_again=lambda: None
    )
    seen = observe_staged(staged, compiler_use="never")
    return seen, _findings(seen)


def program_of(
    function: Callable[..., Any], asked: Mapping[str, Any], mesh: Mesh | None
) -> tuple[Callable[..., Any], list[Any]]:
    """Return an answer as a function of arrays alone, and their shapes and shardings."""
    leaves: list[tuple[ArrayLeaf, str]] = []

    def note(leaf: ArrayLeaf) -> ArrayLeaf:
        leaves.append((leaf, asked["specs"][leaf.number] if asked["specs"] else "P()"))
        return leaf

    unpack(asked["arguments"], note)

    def program(*arrays: Any) -> Any:
        with placing_where_traced(mesh):
            given = arguments(asked, mesh, lambda leaf: arrays[leaf.number])
            return result_of_arrays(asked["function"], function(*given))

    program.__name__ = program.__qualname__ = asked["function"]
    # `inspect` looks for it by this name; a function has no such attribute for mypy.
    program.__signature__ = _signature(asked["arguments"])  # type: ignore[attr-defined]
    leaves.sort(key=lambda each: each[0].number)
    return program, [_shape(leaf, sharding_of(spec, mesh)) for leaf, spec in leaves]


def _signature(packed: Mapping[str, Any]) -> inspect.Signature:
    """Return one parameter for each array, so that JAX's own words name the answer's arguments."""
    names: dict[int, str] = {}
    for name, value in packed.items():
        numbers = _array_numbers(value)
        if len(numbers) == 1:
            names[numbers[0]] = name
        else:
            names.update({number: f"{name}_{i}" for i, number in enumerate(numbers)})
    kind = inspect.Parameter.POSITIONAL_ONLY
    return inspect.Signature([inspect.Parameter(names[i], kind) for i in sorted(names)])


def _array_numbers(packed: Any) -> list[int]:
    numbers: list[int] = []
    unpack(packed, lambda leaf: numbers.append(leaf.number))
    return numbers


def sharding_of(spec: str, mesh: Mesh | None) -> NamedSharding | None:
    """Return how an input arrives."""
    if mesh is None:
        return None
    return NamedSharding(mesh, PartitionSpec(*parse_spec(spec).entries))


def _shape(leaf: ArrayLeaf, sharding: NamedSharding | None) -> Any:
    dtype = jax.dtypes.canonicalize_dtype(jnp.dtype(leaf.dtype))
    return jax.ShapeDtypeStruct(leaf.shape, dtype, sharding=sharding)


@contextlib.contextmanager
def _whole(mesh: Mesh | None) -> Iterator[None]:
    """Keep the frames of JAX in tracebacks, which tell whose mistake it is; hide other devices."""
    with full_tracebacks(), contextlib.ExitStack() as stack:
        if mesh is None:
            stack.enter_context(one_device())
        yield


def _other_devices(n_own: int, n_given: int) -> AnswerError:
    return AnswerError(
        "own_devices",
        f"The program is made for {n_own} devices, and the mesh of this case has {n_given}.",
        "use the mesh that is given; where none is, a mesh of one device: "
        "Mesh(jax.devices()[:1], ('data',)).",
    )


def _callback_line(jaxpr: Any) -> int | None:
    """Return the line of the first call back into Python."""
    for site in walk_jaxpr(jaxpr):
        if "callback" in site.name or site.name.startswith("debug_"):
            return site.source.line or None
    return None


# ---------------------------------------------------------------------------- what is in the way


def stopped(error: BaseException, function: Any, mesh: Mesh | None) -> Stopped:
    """Return what JAX refuses in its own words and ours; anything else as it was raised."""
    sizes = dict(mesh.shape) if mesh is not None else {}
    clue = find_rejection(convert_axis_error(error, sizes) or error, function)
    if clue is None or clue.facts["family"] == "other":
        return Stopped(told(error), [])
    return Stopped(told(error), _findings(Observation(program="", mesh=(), patterns=(clue,))))


def _findings(seen: Observation) -> Findings:
    return [found.to_json() for found in check_program(seen, replicated_bytes=_ANY_SIZE)]
