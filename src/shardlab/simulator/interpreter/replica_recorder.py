"""The outputs of shard_maps, copy by copy, written down while a check looks at a run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardlab import _jax
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.stacked_array import MeshAxes, StackedArray, arrange_dims
from shardlab.simulator.run_records import ReplicaValues

# A shard_map in a loop gives its outputs many times; the first ones tell what there is to tell.
_MOST_TIMES = 16

_books: list[ReplicaRecorder] = []


class ReplicaRecorder:
    """What was written down since `record_replicas` began."""

    def __init__(self) -> None:
        self.entries: list[ReplicaValues] = []
        self._times: Counter[Any] = Counter()

    def write(self, copies: ReplicaValues) -> None:
        self._times[copies.key] += 1
        if self._times[copies.key] <= _MOST_TIMES:
            self.entries.append(copies)


@contextlib.contextmanager
def record_replicas() -> Iterator[ReplicaRecorder]:
    """Write down every shard_map output that is traced and run within this block.

    On many devices only those whose spec promises equal copies; on one device all, since they say
    what was meant. Nothing is warned about meanwhile.
    """
    book = ReplicaRecorder()
    _books.append(book)
    try:
        yield book
    finally:
        _books.remove(book)


def is_recording() -> bool:
    return bool(_books)


def record(
    value: StackedArray, spec: Any, axes: MeshAxes, names: tuple[str, ...], blank: ReplicaValues
) -> None:
    """Write the values of an output down when the program runs, joined over its other axes."""
    if value.array.size > 2**26:
        return  # a copy of this on the host would cost more than it tells
    joined = boundary.gather_output(value, spec, axes)
    others = tuple(slot for slot in joined.slots if slot not in names)
    array = arrange_dims(joined, (*names, *others), joined.array.shape)
    if _jax.is_extended(array.dtype):
        array = jax.random.key_data(array)

    def write(array: Any) -> None:
        if _books:
            values = plain_array(np.array(array))
            _books[-1].write(
                ReplicaValues(
                    number=blank.number,
                    of=blank.of,
                    body=blank.body,
                    source=blank.source,
                    mesh_axes=names,
                    values=values,
                )
            )

    jax.debug.callback(write, array)


def plain_array(array: Any) -> Any:
    """Return numbers in a dtype that NumPy knows; every narrow float fits in a float32."""
    if array.dtype.kind in "biufc" and array.dtype.isbuiltin == 1:
        return array
    return array.astype(np.float32 if jnp.issubdtype(array.dtype, jnp.floating) else np.int32)
