"""Replicated outputs: compares the copies of an output that its spec declares replicated."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from shardlab.findings.source import SourceLocation
from shardlab.simulator.interpreter.replica_recorder import is_recording, record_output
from shardlab.simulator.interpreter.rules.reductions import psum
from shardlab.simulator.interpreter.shard_boundary import select_first_replica, spec_axes
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    arrange_dims,
    broadcast_over,
)
from shardlab.simulator.run_records import ReplicaValues
from shardlab.simulator.run_statistics import RUN_STATISTICS

_MAX_LISTED = 7  # devices in a warning


class ReplicasDiffer(UserWarning):
    """An output that its spec declares replicated has different values on different devices."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputSource:
    """Which output of which shard_map body, and the source line of that body."""

    index: int
    n_outputs: int
    body: str
    file: str
    line: int

    def __str__(self) -> str:
        output = "the output" if self.n_outputs == 1 else f"output {self.index} of {self.n_outputs}"
        return f"{output} of '{self.body}'"

    def empty_record(self) -> ReplicaValues:
        """Return a record of this output without values."""
        return ReplicaValues(
            output_index=self.index,
            n_outputs=self.n_outputs,
            body=self.body,
            source=SourceLocation(self.file, self.line, self.body),
            mesh_axes=(),
            values=None,
        )


def finish_output(
    value: StackedArray,
    spec: Any,
    inner: MeshAxes,
    newly_manual: Collection[str],
    keep_partial_sums: bool,
    source: OutputSource,
) -> StackedArray:
    """Prepare an output to leave its shard_map: sum partial sums, reduce replicas to one copy.

    A mesh axis that the spec does not mention declares the output replicated over it. With
    `check_vma=False` JAX has not proven that. If the interpreter cannot either, because the value
    still has a device axis, the copies are compared when the program runs, and a difference is a
    warning with the values. The first device's copy is returned, as JAX returns one of them.
    """
    unreduced = frozenset(spec.unreduced)
    if keep_partial_sums:
        value = broadcast_over(value, unreduced, inner)
    elif unreduced:
        value = psum(inner, value, inner.in_mesh_order(unreduced))
    accounted_for = spec_axes(spec) | unreduced
    replicated = inner.in_mesh_order(
        n for n in value.device_axes if n in newly_manual and n not in accounted_for
    )
    if is_recording():
        # On one device every output is recorded: it is the reference for the other meshes.
        if replicated or inner.size(newly_manual) == 1:
            record_output(value, spec, inner, replicated, source.empty_record())
    elif replicated:
        _compare_replicas(value, replicated, inner.size(newly_manual), source)
    return select_first_replica(value, replicated)


def _compare_replicas(
    value: StackedArray, names: tuple[str, ...], n_devices: int, source: OutputSource
) -> None:
    """Compare copies when the program runs; warn once per output, at its first difference."""
    rest = tuple(dim for dim in value.dims if dim not in names)
    array = arrange_dims(value, (*names, *rest), value.array.shape)
    warned: list[str] = []

    def compare_on_host(array: Any) -> None:
        message = "" if warned else _difference_text(np.asarray(array), names, n_devices, source)
        if message:
            warned.append(message)
            RUN_STATISTICS.n_differing += 1
            # An empty registry per call: Python would otherwise drop a warning with equal text
            # about another output of the same line.
            warnings.warn_explicit(message, ReplicasDiffer, source.file, source.line, registry={})

    jax.debug.callback(compare_on_host, array)


def _difference_text(
    array: np.ndarray[Any, Any], names: tuple[str, ...], n_devices: int, source: OutputSource
) -> str:
    """Describe the devices whose values differ from the first one's; empty if all are equal."""
    coordinates = list(itertools.product(*(range(n) for n in array.shape[: len(names)])))
    first = array[coordinates[0]]
    has_nan = first.dtype.kind in "fc"  # equal_nan raises for other dtypes
    differing = [c for c in coordinates if not np.array_equal(array[c], first, equal_nan=has_nan)]
    if not differing:
        return ""
    lines = [
        f"  {_coordinate_text(names, c)}: {_array_text(array[c])}"
        for c in [coordinates[0], *differing[:_MAX_LISTED]]
    ]
    if len(differing) > _MAX_LISTED:
        lines.append(f"  ... and {len(differing) - _MAX_LISTED} more")
    # One coordinate along `names` represents all devices along the other mesh axes.
    n_differing = len(differing) * n_devices // len(coordinates)
    return (
        f"{source}, declared replicated over {', '.join(map(repr, names))}, differs on "
        f"{n_differing} of {n_devices} devices; the first device's copy is returned.\n"
        + "\n".join(lines)
        + "\n  try: sum or average it over that axis (psum, pmean), or shard it in out_specs."
    )


def _coordinate_text(names: tuple[str, ...], coordinate: tuple[int, ...]) -> str:
    return " ".join(f"{name}={i}" for name, i in zip(names, coordinate, strict=True))


def _array_text(array: np.ndarray[Any, Any]) -> str:
    return np.array2string(array, threshold=6, edgeitems=2, precision=4).replace("\n", " ")
