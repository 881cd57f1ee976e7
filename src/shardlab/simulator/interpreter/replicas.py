"""Copies that should be equal: what happens when an output declared replicated is not."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Collection
from typing import Any

import jax
import numpy as np

from shardlab.findings.source import SourceLocation
from shardlab.simulator.interpreter import replica_recorder as copies
from shardlab.simulator.interpreter import shard_boundary as boundary
from shardlab.simulator.interpreter.rules.reductions import psum
from shardlab.simulator.interpreter.stacked_array import (
    MeshAxes,
    StackedArray,
    arrange_dims,
    broadcast_over,
)
from shardlab.simulator.run_records import ReplicaValues
from shardlab.simulator.virtual_devices.run_statistics import TALLY


class ReplicasDiffer(UserWarning):
    """An output that its spec calls replicated holds different values on different devices."""


@dataclasses.dataclass(frozen=True)
class Output:
    """Which output of which body, as a person would point at it."""

    number: int
    of: int
    body: str
    file: str
    line: int

    def __str__(self) -> str:
        which = "the output" if self.of == 1 else f"output {self.number} of {self.of}"
        return f"{which} of '{self.body}'"

    def unfilled(self) -> ReplicaValues:
        source = SourceLocation(self.file, self.line, self.body)
        return ReplicaValues(
            number=self.number, of=self.of, body=self.body, source=source, mesh_axes=(), values=None
        )


def settle(
    value: StackedArray,
    spec: Any,
    inner: MeshAxes,
    newly: Collection[str],
    keep_summands: bool,
    at: Output,
) -> StackedArray:
    """Make an output ready to leave a shard_map: add up its summands, look at its copies.

    A mesh axis that the spec does not mention promises equal copies. With `check_vma=False` nobody
    has proved it; where they can differ they are compared when the program runs, and a difference
    is a warning that shows the values. The copy handed on is that of the first device.
    """
    unreduced = frozenset(spec.unreduced)
    if keep_summands:
        value = broadcast_over(value, unreduced, inner)
    elif unreduced:
        value = psum(inner, value, inner.in_mesh_order(unreduced))
    settled = boundary.spec_axes(spec) | unreduced
    names = inner.in_mesh_order(n for n in value.device_axes if n in newly and n not in settled)
    if copies.is_recording():
        if names or inner.size(newly) == 1:
            copies.record(value, spec, inner, names, at.unfilled())
    elif names:
        _compare(value, names, inner, inner.size(newly), at)
    return boundary.first_copy(value, names)


def _compare(
    value: StackedArray, names: tuple[str, ...], axes: MeshAxes, n_devices: int, at: Output
) -> None:
    """Compare copies when the program runs; the first difference of an output is told, once."""
    rest = tuple(slot for slot in value.slots if slot not in names)
    array = arrange_dims(value, (*names, *rest), value.array.shape)
    told: list[str] = []

    def compare(array: Any) -> None:
        message = "" if told else _difference(np.asarray(array), names, n_devices, at)
        if message:
            told.append(message)
            TALLY.n_differing += 1
            # A registry of its own: an equal text about another output must not silence this one.
            warnings.warn_explicit(message, ReplicasDiffer, at.file, at.line, registry={})

    jax.debug.callback(compare, array)


def _difference(
    array: np.ndarray[Any, Any], names: tuple[str, ...], n_devices: int, at: Output
) -> str:
    """Say which devices hold other values than the first one; empty where all are equal."""
    coordinates = list(itertools.product(*(range(n) for n in array.shape[: len(names)])))
    first = array[coordinates[0]]
    odd = [c for c in coordinates if not np.array_equal(array[c], first, equal_nan=_has_nan(first))]
    if not odd:
        return ""
    lines = [f"  {_coordinate(names, c)}: {_short(array[c])}" for c in [coordinates[0], *odd[:7]]]
    if len(odd) > 7:
        lines.append(f"  ... and {len(odd) - 7} more")
    n_odd = len(odd) * n_devices // len(coordinates)
    return (
        f"{at}, declared replicated over {', '.join(map(repr, names))}, differs on "
        f"{n_odd} of {n_devices} devices; the first device's copy is returned.\n"
        + "\n".join(lines)
        + "\n  try: sum or average it over that axis (psum, pmean), or shard it in out_specs."
    )


def _has_nan(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "fc"


def _coordinate(names: tuple[str, ...], coordinate: tuple[int, ...]) -> str:
    return " ".join(f"{name}={i}" for name, i in zip(names, coordinate, strict=True))


def _short(array: np.ndarray[Any, Any]) -> str:
    return np.array2string(array, threshold=6, edgeitems=2, precision=4).replace("\n", " ")
