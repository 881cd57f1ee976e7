"""The runner: runs exported programs on the hidden inputs, and reports shards and collectives.

It never loads a submission. The bytes of a program are hostile all the same, because the tracer
that sends them shares its interpreter with the submission: they are validated before anything is
compiled, and the runner is confined too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.export
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardlab._jax.ablation import remove_construct
from shardlab._jax.exported_program import ProgramContents, read_contents, strip_attributes
from shardlab._jax.module_flow import read_module_flow
from shardlab.collectives.program_flow import ProgramFlow
from shardlab.judge.protocol.reports import ExceptionReport, InputArray
from shardlab.judge.protocol.requests import RunRequest, WorkerRequest
from shardlab.judge.protocol.responses import RunResponse, WorkerResponse
from shardlab.judge.protocol.run_result import (
    CollectiveRecord,
    RunOutput,
    RunResult,
    Shard,
    encode_outputs,
    shard_ranges,
)
from shardlab.judge.protocol.values import ArrayLeaf, array_from_buffer
from shardlab.judge.worker.compiled_collectives import find_collectives, read_compiled_module
from shardlab.judge.worker.jax_overrides import create_host_mesh
from shardlab.judge.worker.worker_process import (
    compile_fast,
    serve_requests,
    set_fast_lowering,
)
from shardlab.sandbox.frame import InvalidFrame
from shardlab.sharding import mesh as sharding_mesh
from shardlab.sharding.spec import parse_spec

_MAX_REQUEST = 1 << 28
_MAX_RESPONSE = 7 << 20
_MAX_MESSAGE = 4000
_ONE_DEVICE = sharding_mesh.Mesh({"data": 1})


@dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """A compiled program, and what was read from it; the same however often it runs."""

    execute: Callable[..., Any]
    collectives: tuple[CollectiveRecord, ...]
    peak_bytes: int
    flow: ProgramFlow
    exported: jax.export.Exported
    is_replicated: bool
    # Constructs without which the program returns the same, as far as they were removed.
    influence: dict[str, bool] = field(default_factory=dict)


class Runner:
    """Handles requests to run a program."""

    def __init__(self) -> None:
        self._compiled: dict[Any, CompiledProgram] = {}

    def handle_request(self, request: WorkerRequest[Any]) -> WorkerResponse:
        """Return the result of a program, or why there is none."""
        try:
            if not isinstance(request, RunRequest):
                raise InvalidFrame(f"the runner does not serve {request.message_type!r}")
            return self._run_program(request)
        except Exception as error:
            report = ExceptionReport(
                exception_type=type(error).__name__,
                message=str(error)[:_MAX_MESSAGE],
                family="invalid_program" if isinstance(error, InvalidProgram) else "run",
            )
            return request.error_response(report)

    def _run_program(self, request: RunRequest) -> RunResponse:
        mesh = create_host_mesh(request.mesh or _ONE_DEVICE)
        arrays = [_place_input(array, mesh) for array in request.inputs]
        compiled = self._compile_once(request, arrays, mesh)
        outputs = jax.block_until_ready(compiled.execute(*arrays))
        result = RunResult(
            outputs=_collect_outputs(outputs),
            collectives=compiled.collectives,
            peak_bytes=compiled.peak_bytes,
            flow=compiled.flow,
            ineffective=tuple(
                name
                for name in request.probes
                if name in compiled.flow.constructs
                and not _has_influence(name, compiled, arrays, outputs, mesh)
            ),
        )
        # Checked here: a response beyond the client's limit would end this process as hostile.
        _, buffers = encode_outputs(result.outputs)
        if sum(map(len, buffers)) > _MAX_RESPONSE:
            raise InvalidProgram(f"the shards of all devices exceed {_MAX_RESPONSE:,} bytes")
        return RunResponse(result=result)

    def _compile_once(
        self, request: RunRequest, arrays: Sequence[Any], mesh: Mesh
    ) -> CompiledProgram:
        """Return a compiled program; cases on one mesh often differ in their values alone."""
        signature = tuple((array.shape, array.dtype, array.spec) for array in request.inputs)
        key = (request.program, str(request.mesh and request.mesh.to_json()), signature)
        if key not in self._compiled:
            self._compiled[key] = _compile_program(request, arrays, mesh)
        return self._compiled[key]


def _place_input(array: InputArray, mesh: Mesh) -> Any:
    values = array_from_buffer(ArrayLeaf(0, array.shape, array.dtype), array.values)
    spec = PartitionSpec(*parse_spec(array.spec).entries)
    return jax.device_put(values, NamedSharding(mesh, spec))


def _compile_program(request: RunRequest, arrays: Sequence[Any], mesh: Mesh) -> CompiledProgram:
    """Return a program compiled for a mesh. Raises `InvalidProgram` if it is not one for it."""
    shapes = [(array.shape, array.dtype) for array in request.inputs]
    exported, contents = read_program(request.program, shapes, mesh.size)
    # A program that names no mesh is exported for one device; it does the same on every device.
    is_single = exported.nr_devices == 1
    # But one that takes no array and has its mesh from the context is exported for one device too.
    is_replicated = is_single and "sdy.sharding_constraint" not in contents.operations
    compiled, execute = _compile_exported(exported, arrays, mesh, is_replicated)
    memory = compiled.memory_analysis()
    collectives: Sequence[CollectiveRecord] = ()
    if mesh.size > 1:
        module = read_compiled_module(compiled, mesh.size)
        collectives = find_collectives(contents.collectives, module)
    return CompiledProgram(
        execute=execute,
        collectives=tuple(collectives),
        peak_bytes=memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        + memory.temp_size_in_bytes
        - memory.alias_size_in_bytes,
        flow=read_module_flow(exported),
        exported=exported,
        is_replicated=is_replicated,
    )


def _compile_exported(
    exported: jax.export.Exported, arrays: Sequence[Any], mesh: Mesh, is_replicated: bool
) -> tuple[Any, Callable[..., Any]]:
    """Return a compiled program, and the function that runs it."""
    replicated = NamedSharding(mesh, PartitionSpec())
    shardings = [replicated] * len(arrays)
    if exported.nr_devices > 1:
        shardings = list(exported.in_shardings_jax(mesh))
    # If no array is used, nothing says which devices are meant. One bit on all of them does.
    token = jax.device_put(np.zeros((), np.bool_), replicated)
    # `keep_unused`: without it, an exported program that does not use its arrays would lose them,
    # and with them its devices.
    call = jax.jit(
        lambda token, *arrays: exported.call(*arrays),
        in_shardings=[replicated, *shardings],
        out_shardings=replicated if is_replicated else None,
        keep_unused=not exported.module_kept_var_idx,
    )
    compiled = compile_fast(call.lower(token, *arrays))
    return compiled, lambda *arrays: compiled(token, *arrays)


# ------------------------------------------------------------------------------ influence

_N_DRAWS = 3
_MIN_CHANGE = 1e-4  # relative to the largest value of an output


def _has_influence(
    name: str, compiled: CompiledProgram, arrays: Sequence[Any], outputs: Any, mesh: Mesh
) -> bool:
    """Return whether the program returns something else without a construct.

    Hidden inputs may be zeros or all alike, so other inputs are tried before the answer is no.
    """
    if name not in compiled.influence:
        compiled.influence[name] = _measure_influence(name, compiled, arrays, outputs, mesh)
    return compiled.influence[name]


def _measure_influence(
    name: str, compiled: CompiledProgram, arrays: Sequence[Any], outputs: Any, mesh: Mesh
) -> bool:
    programs = [remove_construct(compiled.exported, name)]
    if name == "psum":
        programs.append(remove_construct(compiled.exported, name, as_if_equal=True))
    # It must matter that devices communicate, and that they do not all pass the same.
    return all(
        program is None or _returns_other(program, compiled, arrays, outputs, mesh)
        for program in programs
    )


def _returns_other(
    reduced: jax.export.Exported,
    compiled: CompiledProgram,
    arrays: Sequence[Any],
    outputs: Any,
    mesh: Mesh,
) -> bool:
    _, execute = _compile_exported(reduced, arrays, mesh, compiled.is_replicated)
    if _outputs_differ(outputs, execute(*arrays)):
        return True
    rng = np.random.default_rng(0)
    for _ in range(_N_DRAWS):
        draws = [jax.device_put(_draw_like(rng, array), array.sharding) for array in arrays]
        if _outputs_differ(compiled.execute(*draws), execute(*draws)):
            return True
    return False


def _draw_like(rng: np.random.Generator, array: Any) -> Any:
    if np.issubdtype(array.dtype, np.integer) or array.dtype == np.bool_:
        return rng.integers(0, 2, array.shape).astype(array.dtype)
    return rng.normal(size=array.shape).astype(array.dtype)


def _outputs_differ(first: Any, second: Any) -> bool:
    """Return whether a device holds other values, beyond rounding."""
    for left, right in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        pairs = [
            (np.asarray(a.data), np.asarray(b.data))
            for a, b in zip(left.addressable_shards, right.addressable_shards, strict=True)
        ]
        # Without the construct the compiler may shard the result in another way.
        if any(a.shape != b.shape for a, b in pairs):
            pairs = [(np.asarray(left), np.asarray(right))]
        for a, b in pairs:
            is_exact = a.dtype.kind in "biu"
            wide = np.dtype(np.int64 if is_exact else np.complex128)
            a, b = a.astype(wide), b.astype(wide)
            scale = float(np.abs(a[np.isfinite(a)]).max(initial=0))
            atol = 0.0 if is_exact else _MIN_CHANGE * scale
            if not np.allclose(a, b, rtol=0, atol=atol, equal_nan=True):
                return True
    return False


def _collect_outputs(outputs: Any) -> tuple[RunOutput, ...]:
    records = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(outputs):
        shards = tuple(
            Shard(shard.device.id, shard_ranges(shard.index, leaf.shape), np.asarray(shard.data))
            for shard in leaf.addressable_shards
        )
        name = jax.tree_util.keystr(path)
        records.append(RunOutput(name, tuple(leaf.shape), leaf.dtype.name, shards))
    return tuple(records)


# ------------------------------------------------------------------------------ hostile programs

_MAX_PROGRAM = 4 << 20
_MAX_OPERATIONS = 100_000
_MAX_CONSTANT = 1 << 20  # elements of one constant
_MAX_OUTPUTS = 1 << 20  # elements of all outputs
_DIALECTS = ("func", "stablehlo", "sdy")
_HOST_OPERATIONS = {f"stablehlo.{name}" for name in ("infeed", "outfeed", "send", "recv")}
# Custom calls that XLA itself replaces. None into a library: LAPACK's wrappers trust the shapes in
# the call, and write beyond a buffer if they are wrong.
# Nor the calls by which programs were sharded before Shardy: their shardings are attributes, which
# are stripped, and no shard_map can be recognized in them.
_ALLOWED_CALLS = re.compile(r"ApproxTopK")


class InvalidProgram(Exception):
    """Bytes that are no program, or not the one that was requested."""


def read_program(
    data: bytes, arrays: Sequence[tuple[Sequence[int], str]], n_devices: int
) -> tuple[jax.export.Exported, ProgramContents]:
    """Return a program of these arrays for these devices, or for one, and its contents.

    Nothing is compiled before this. What passes is what `jax.export` produces from arrays and mesh
    axes: one platform, the requested shapes and devices, no calls out of XLA.
    """
    if len(data) > _MAX_PROGRAM:
        raise InvalidProgram(
            f"the program has {len(data):,} bytes; the maximum is {_MAX_PROGRAM:,}"
        )
    try:
        exported = strip_attributes(jax.export.deserialize(bytearray(data)))
        contents = read_contents(exported)
    except Exception as error:
        name = type(error).__name__
        raise InvalidProgram(f"the bytes are no exported program ({name})") from None
    for reason in (
        _find_interface_error(exported, arrays, n_devices),
        _find_forbidden_content(contents),
    ):
        if reason:
            raise InvalidProgram(reason)
    return exported, contents


def _find_interface_error(
    exported: Any, arrays: Sequence[tuple[Sequence[int], str]], n_devices: int
) -> str:
    """Return what is wrong with the inputs, outputs and devices of a program."""
    if tuple(exported.platforms) != ("cpu",):
        return f"the program is for {', '.join(exported.platforms)[:80]}, not for cpu"
    if exported.nr_devices not in (1, n_devices):
        return f"the program is for {exported.nr_devices} devices; the mesh has {n_devices}"
    # Effects are callbacks, prints and tokens: all of them lead out of the program.
    if exported.ordered_effects or exported.unordered_effects:
        return "the program has side effects"
    requested = [
        (tuple(shape), str(jax.dtypes.canonicalize_dtype(dtype))) for shape, dtype in arrays
    ]
    inputs = [(tuple(aval.shape), str(aval.dtype)) for aval in exported.in_avals]
    if inputs != requested:
        return f"the program takes {inputs!r:.200}; requested: {requested!r:.200}"
    # Symbolic dimensions would be resolved by the inputs, after the limit below was checked.
    if not all(type(n) is int for aval in exported.out_avals for n in aval.shape):
        return "the program returns arrays of no fixed shape"
    if sum(math.prod(aval.shape) for aval in exported.out_avals) > _MAX_OUTPUTS:
        return f"the program returns more than {_MAX_OUTPUTS:,} numbers"
    return ""


def _find_forbidden_content(contents: ProgramContents) -> str:
    """Return what is wrong with the operations of a program."""
    operations = sorted(
        name
        for name in contents.operations
        if name.partition(".")[0] not in _DIALECTS or name in _HOST_OPERATIONS
    )
    if operations:
        return f"the program has the operation {', '.join(operations)[:80]}, which is not allowed"
    calls = sorted(name for name in contents.custom_calls if not _ALLOWED_CALLS.fullmatch(name))
    if calls:
        return f"the program calls {', '.join(calls)[:200]}, which is not allowed"
    if contents.largest_constant > _MAX_CONSTANT:
        return f"the program has a constant of {contents.largest_constant:,} numbers"
    if contents.n_operations > _MAX_OPERATIONS:
        return f"the program has {contents.n_operations:,} operations"
    return ""


def main(requests_fd: int, responses_fd: int) -> None:
    """Serve requests until there are no more."""
    jax.devices()  # starts the backend now: a runner is forked ahead of its first request
    set_fast_lowering()
    serve_requests(Runner().handle_request, requests_fd, responses_fd, _MAX_REQUEST)
