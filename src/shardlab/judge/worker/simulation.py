"""A submission on a mesh that is larger than the machine: traced and checked, then simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from shardlab.collectives.call import CollectiveCall
from shardlab.errors import Deadlock
from shardlab.judge.protocol.reports import FindingReport
from shardlab.judge.protocol.requests import SimulateRequest
from shardlab.judge.protocol.responses import SimulateResponse
from shardlab.judge.protocol.run_result import (
    CollectiveRecord,
    RunOutput,
    RunResult,
    Shard,
    shard_ranges,
)
from shardlab.judge.worker.loaded_submission import LoadedSubmission
from shardlab.judge.worker.tracing import (
    SubmissionRejected,
    TracedSubmission,
    explain_rejection,
    trace_submission,
)
from shardlab.simulator.interpreter.replica_recorder import record_replicas
from shardlab.simulator.run_records import ReplicaValues
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.array_labels import sharding_of
from shardlab.simulator.virtual_devices.devices import virtual_mesh

Array = npt.NDArray[Any]
_MAX_REPLICA_BYTES = 4 << 20
_MAX_EXAMPLES = 4


def simulate_submission(
    submission: LoadedSubmission, request: SimulateRequest, inputs: Sequence[Array]
) -> SimulateResponse:
    """Return the shards of every virtual device. Raises `SubmissionRejected`."""
    assert request.call.mesh is not None
    axes = dict(request.call.mesh.shape)
    with simulated(int(np.prod(list(axes.values())))):
        mesh = virtual_mesh(axes)
        traced = trace_submission(submission, request.call, mesh)
        # Inside of `simulated`: there device_put places on virtual devices.
        arrays = [
            jax.device_put(np.asarray(array, shape.dtype), shape.sharding)
            for array, shape in zip(inputs, traced.shapes, strict=True)
        ]
        with record_replicas() as recorder:
            outputs = _run_traced(traced, arrays)
        differing = [values for values in recorder.entries if _has_differing_replicas(values)]
        output_records = tuple(_collect_outputs(outputs, differing, mesh))
    result = RunResult(
        outputs=output_records,
        collectives=tuple(_record_call(call) for call in traced.calls if call.group_size > 1),
        # Budgets of memory are not judged on simulated devices.
        peak_bytes=0,  # nothing is compiled for virtual devices
        flow=traced.flow,
    )
    return SimulateResponse(
        result=result,
        findings=(*traced.findings, *map(_replica_finding, differing)),
        n_unchecked=traced.n_unchecked,
        has_debug_calls=traced.has_debug_calls,
    )


def _record_call(call: CollectiveCall) -> CollectiveRecord:
    return CollectiveRecord(
        op=call.op,
        shape=tuple(call.shape),
        dtype=call.dtype,
        count=call.count,
        group_size=call.group_size,
    )


def _run_traced(traced: TracedSubmission, arrays: Sequence[Any]) -> Any:
    try:
        outputs = jax.block_until_ready(traced.jitted(*arrays))
        jax.effects_barrier()
        return outputs
    except Deadlock as error:
        raise SubmissionRejected(None, (_deadlock_finding(error),)) from None
    except BaseException as error:
        raise explain_rejection(error, traced.function, traced.mesh) from None


def _collect_outputs(
    outputs: Any, differing: Sequence[ReplicaValues], mesh: Any
) -> Iterator[RunOutput]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(outputs):
        array = np.asarray(leaf)
        indices = sharding_of(leaf).devices_indices_map(array.shape)
        # A virtual array has one value for all replicas. Those that differ between devices are
        # recorded beside it, and belong to this output if its value is the first of them.
        replicas = next((values for values in differing if _matches_output(values, array)), None)
        if replicas is not None and array.nbytes * len(indices) > _MAX_REPLICA_BYTES:
            replicas = None  # too large to send; the finding reports it
        shards = []
        for device, index in indices.items():
            values = array
            if replicas is not None:
                values = _replica_on(replicas, device, mesh).astype(array.dtype)
            shards.append(Shard(device.id, shard_ranges(index, array.shape), values[index]))
        name = jax.tree_util.keystr(path)
        yield RunOutput(name, array.shape, array.dtype.name, tuple(shards))


# ---------------------------------------------------------------------------- replicas that differ


def _has_differing_replicas(replicas: ReplicaValues) -> bool:
    first = _first_replica(replicas)
    return bool(replicas.mesh_axes) and any(
        values.tobytes() != first.tobytes() for values in _iterate_replicas(replicas)
    )


def _first_replica(replicas: ReplicaValues) -> Array:
    first: Array = replicas.values[(0,) * len(replicas.mesh_axes)]
    return first


def _iterate_replicas(replicas: ReplicaValues) -> Iterator[Array]:
    for position in np.ndindex(*replicas.values.shape[: len(replicas.mesh_axes)]):
        yield replicas.values[position]


def _matches_output(replicas: ReplicaValues, array: Array) -> bool:
    """Return whether an output of a shard_map is this result: the first replica is its value."""
    first = _first_replica(replicas)
    if first.shape != array.shape:
        return False
    return bool(
        np.array_equal(first, array.astype(first.dtype), equal_nan=first.dtype.kind in "fc")
    )


def _replica_on(replicas: ReplicaValues, device: Any, mesh: Any) -> Array:
    position = np.argwhere(mesh.devices == device)[0]
    coordinates = dict(zip(mesh.axis_names, position, strict=True))
    values: Array = replicas.values[tuple(coordinates[name] for name in replicas.mesh_axes)]
    return values


def _replica_finding(replicas: ReplicaValues) -> FindingReport:
    axes = " and ".join(map(repr, replicas.mesh_axes))
    examples = [
        _short_array_text(values)
        for _, values in zip(range(_MAX_EXAMPLES), _iterate_replicas(replicas), strict=False)
    ]
    return FindingReport(
        code="hazard.replicas_differ",
        severity="error",
        what=f"An output of a shard_map that is declared replicated over {axes} differs between "
        f"devices: the first devices hold {', '.join(examples)}.",
        line=replicas.source.line or None,
        fix=f"reduce it over {axes} (psum, pmean), or name the axis in out_specs.",
    )


def _deadlock_finding(error: Deadlock) -> FindingReport:
    line = None
    # `where` is "file:line (function)" of the collective.
    with contextlib.suppress(ValueError, IndexError):
        line = int((error.where or "").split(":")[1].split()[0])
    return FindingReport(
        code="hazard.deadlock", severity="error", what=error.what, line=line, fix=error.fix or ""
    )


def _short_array_text(array: Array) -> str:
    return np.array2string(array, threshold=4, edgeitems=1, precision=4).replace("\n", " ")
