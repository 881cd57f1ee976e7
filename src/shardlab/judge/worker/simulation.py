"""An answer on a mesh that is too large to run: traced and looked at like any, then simulated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from shardlab.collectives.call import CollectiveCall
from shardlab.errors import Deadlock
from shardlab.judge.worker.outputs import Piece, output, ranges_of
from shardlab.judge.worker.submission import Submission
from shardlab.judge.worker.tracing import Stopped, stopped, trace
from shardlab.sandbox.frame import Frame
from shardlab.simulator.interpreter.replica_recorder import record_replicas
from shardlab.simulator.run_records import ReplicaValues
from shardlab.simulator.simulated_mode import simulated
from shardlab.simulator.virtual_devices.array_labels import sharding_of
from shardlab.simulator.virtual_devices.devices import virtual_mesh

Array = npt.NDArray[Any]
_MOST_COPIES = 4 << 20  # bytes


def simulate(submission: Submission, asked: Mapping[str, Any], inputs: Sequence[Array]) -> Frame:
    """Return what every virtual device holds of every output. Raises `Stopped`."""
    axes = dict(asked["mesh"]["axes"])
    with simulated(int(np.prod(list(axes.values())))):
        mesh = virtual_mesh(axes)
        traced = trace(submission, asked, mesh)
        placed = [
            jax.device_put(np.asarray(array, shape.dtype), shape.sharding)
            for array, shape in zip(inputs, traced.shapes, strict=True)
        ]
        with record_replicas() as book:
            outputs = _run(traced, placed)
        differing = [copies for copies in book.entries if _differ(copies)]
        told, buffers = _told(outputs, differing, mesh)
    found = [*traced.findings, *(_finding(each) for each in differing)]
    header = {
        "outputs": told,
        "calls": [_call(call) for call in traced.calls if call.group_size > 1],
        "peak_bytes": 0,  # nothing was compiled for these devices
        "has_shard_map": traced.n_shard_maps > 0,
        "n_unchecked": traced.n_unchecked,
        "findings": found,
    }
    return Frame(header, tuple(buffers))


def _call(call: CollectiveCall) -> dict[str, Any]:
    """Return a call as the runner tells it; here it is read from the trace."""
    told = ("op", "dtype", "count", "group_size", "payload_bytes", "wire_bytes")
    return {
        **{name: getattr(call, name) for name in told},
        "shape": list(call.shape),
        "pairs": call.details.get("pairs", []),
        "is_inserted": False,
    }


def _run(traced: Any, placed: Sequence[Any]) -> Any:
    try:
        outputs = jax.block_until_ready(traced.jitted(*placed))
        jax.effects_barrier()
        return outputs
    except Deadlock as error:
        raise Stopped(None, [_deadlock(error)]) from None
    except Exception as error:
        raise stopped(error, traced.function, traced.mesh) from None


def _told(
    outputs: Any, differing: Sequence[ReplicaValues], mesh: Any
) -> tuple[list[dict[str, Any]], list[bytes]]:
    told, buffers = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(outputs):
        whole = np.asarray(leaf)
        places = sharding_of(leaf).devices_indices_map(whole.shape)
        own = next((each for each in differing if _is_of(each, whole)), None)
        if own is not None and whole.nbytes * len(places) > _MOST_COPIES:
            own = None  # too much to send: the finding tells of it
        pieces = [
            Piece(device.id, ranges_of(index, whole.shape), held[index])
            for device, index in places.items()
            for held in [whole if own is None else _copy_on(own, device, mesh).astype(whole.dtype)]
        ]
        name = jax.tree_util.keystr(path)
        data, numbers = output(name, whole.shape, whole.dtype.name, pieces)
        told.append(data)
        buffers += numbers
    return told, buffers


# ------------------------------------------------------------------------- copies that differ


def _differ(copies: ReplicaValues) -> bool:
    first = copies.values[(0,) * len(copies.mesh_axes)]
    return bool(copies.mesh_axes) and any(
        copy.tobytes() != first.tobytes() for copy in _copies(copies)
    )


def _copies(copies: ReplicaValues) -> Iterator[Array]:
    for place in np.ndindex(*copies.values.shape[: len(copies.mesh_axes)]):
        yield copies.values[place]


def _is_of(copies: ReplicaValues, whole: Array) -> bool:
    """Say whether an output of a shard_map is this result: it has the first copy's numbers."""
    first = copies.values[(0,) * len(copies.mesh_axes)]
    if first.shape != whole.shape:
        return False
    return bool(
        np.array_equal(first, whole.astype(first.dtype), equal_nan=first.dtype.kind in "fc")
    )


def _copy_on(copies: ReplicaValues, device: Any, mesh: Any) -> Array:
    at = dict(zip(mesh.axis_names, np.argwhere(mesh.devices == device)[0], strict=True))
    held: Array = copies.values[tuple(at[name] for name in copies.mesh_axes)]
    return held


def _finding(copies: ReplicaValues) -> dict[str, Any]:
    over = " and ".join(map(repr, copies.mesh_axes))
    shown = [_short(copy) for _, copy in zip(range(4), _copies(copies), strict=False)]
    return _data(
        "hazard.replicas_differ",
        f"An output of a shard_map that is declared replicated over {over} differs between "
        f"devices: the first hold {', '.join(shown)}.",
        copies.source.line,
        f"sum or average it over {over} (psum, pmean), or name it in out_specs.",
    )


def _deadlock(error: Deadlock) -> dict[str, Any]:
    line = None
    with contextlib.suppress(ValueError, IndexError):
        line = int((error.where or "").split(":")[1].split()[0])
    return _data("hazard.deadlock", error.what, line, error.fix or "")


def _data(code: str, what: str, line: int | None, fix: str) -> dict[str, Any]:
    where = {"file": "answer.py", "line": line, "function": ""} if line else None
    kept = {"code": code, "severity": "error", "what": what, "where": where, "fix": fix}
    return {**kept, "cause": "", "shows": [], "details": {}}


def _short(array: Array) -> str:
    return np.array2string(array, threshold=4, edgeitems=1, precision=4).replace("\n", " ")
