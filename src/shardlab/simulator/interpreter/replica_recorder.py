"""Records the outputs of shard_maps, copy by copy, while a check or the judge runs a program."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardlab import _jax
from shardlab.simulator.interpreter.shard_boundary import gather_output
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray, arrange_dims
from shardlab.simulator.run_records import ReplicaValues

# A shard_map in a loop produces its outputs many times; the first ones are evidence enough.
_MAX_RECORDS = 16
# Copying more elements than this to the host costs more than the evidence is worth.
_MAX_ELEMENTS = 2**26

_active_recorders: list[ReplicaRecorder] = []


class ReplicaRecorder:
    """The outputs recorded since `record_replicas` began."""

    def __init__(self) -> None:
        self.entries: list[ReplicaValues] = []
        self._counts: Counter[Any] = Counter()

    def add_record(self, record: ReplicaValues) -> None:
        self._counts[record.key] += 1
        if self._counts[record.key] <= _MAX_RECORDS:
            self.entries.append(record)


@contextlib.contextmanager
def record_replicas() -> Iterator[ReplicaRecorder]:
    """Record the shard_map outputs that are traced and run within this block.

    On many devices those whose spec declares them replicated; on one device all of them, because
    they are the reference. No `ReplicasDiffer` warning is issued meanwhile.
    """
    recorder = ReplicaRecorder()
    _active_recorders.append(recorder)
    try:
        yield recorder
    finally:
        _active_recorders.remove(recorder)


def is_recording() -> bool:
    return bool(_active_recorders)


def record_output(
    value: StackedArray,
    spec: Any,
    axes: MeshAxes,
    replicated: tuple[str, ...],
    empty_record: ReplicaValues,
) -> None:
    """Record the values of an output when the program runs, gathered over its sharded axes."""
    if value.array.size > _MAX_ELEMENTS:
        return
    gathered = gather_output(value, spec, axes)
    rest = tuple(dim for dim in gathered.dims if dim not in replicated)
    array = arrange_dims(gathered, (*replicated, *rest), gathered.array.shape)
    if _jax.is_extended(array.dtype):
        array = jax.random.key_data(array)  # NumPy has no dtype for random keys

    def record_on_host(array: Any) -> None:
        # The block may have ended: a compiled program keeps its callbacks.
        if _active_recorders:
            values = plain_array(np.array(array))
            _active_recorders[-1].add_record(
                dataclasses.replace(empty_record, mesh_axes=replicated, values=values)
            )

    jax.debug.callback(record_on_host, array)


def plain_array(array: Any) -> Any:
    """Return numbers in a dtype that NumPy has; every narrow float fits in a float32."""
    if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1:
        return array
    return array.astype(np.float32 if jnp.issubdtype(array.dtype, jnp.floating) else np.int32)
