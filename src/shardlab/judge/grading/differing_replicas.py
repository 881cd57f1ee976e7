"""Replicas that must be equal and differ: what each device holds, which reduction is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardlab.checks.check_replicas import missing_reduction
from shardlab.checks.tolerance import is_close
from shardlab.findings.source import UNKNOWN_LOCATION
from shardlab.judge.grading.evidence import (
    Array,
    Evidence,
    index_text,
    is_float,
    number_text,
    range_slices,
)
from shardlab.judge.protocol.run_result import Shard
from shardlab.judge.verdict import Verdict
from shardlab.sharding.mesh import Mesh
from shardlab.simulator.run_records import ReplicaValues

_REDUCTION_TEXT = {
    "psum": "which add up to",
    "pmean": "which average to",
    "pmax": "whose maximum is",
    "pmin": "whose minimum is",
}
_MAX_VALUES = 8


@dataclass(frozen=True, kw_only=True)
class DifferingReplicas:
    """Devices that hold the same range of an output, with different values."""

    evidence: Evidence
    devices: tuple[int, ...]
    axes: tuple[str, ...]  # over which the replicas differ
    replicas: ReplicaValues
    expected: Array
    start: tuple[int, ...]  # of that range in the output

    @property
    def is_first_right(self) -> bool:
        """Return whether the first device along the axes holds the expected value."""
        first = self.replicas.values[(0,) * len(self.replicas.mesh_axes)]
        return is_close(first, self.expected, self.evidence.atol)

    def find_reduction(self) -> str:
        """Return the collective that reduces the replicas to the expected value, if one does."""
        dtype = self.replicas.values.dtype
        # np.finfo does not know bfloat16, whose eps is about 1e-2.
        eps = float(np.finfo(dtype).eps) if dtype.kind in "fc" else 1e-2 * is_float(dtype)
        # The reference rounds in another order than the devices, so as much as a value may be off.
        scale = float(np.abs(self.expected.astype(np.float64)).max(initial=1e-30)) or 1.0
        return missing_reduction(
            self.replicas, self.axes, self.expected, max(eps, self.evidence.atol / scale)
        )


def find_missing_reduction(groups: Sequence[DifferingReplicas]) -> str:
    """Return the collective that is missing in every case, or nothing.

    If the first device is right every time, the others have computed something else: that the right
    value happens to be the smallest or the largest means nothing then.
    """
    names = {group.find_reduction() for group in groups}
    if len(names) != 1:
        return ""
    name = names.pop()
    # One scalar of two devices is the larger or the smaller one by chance.
    is_significant = len(groups) > 2 or any(group.expected.size > 1 for group in groups)
    is_first_right = all(group.is_first_right for group in groups)
    if name in ("pmax", "pmin") and is_significant and is_first_right:
        return ""
    return name


def find_differing(evidence: Evidence) -> DifferingReplicas | None:
    """Return the first range of an output whose replicas differ, bit for bit.

    NaN equals NaN. No tolerance is needed: a reduction over the same values is equal to the last
    bit on every device, because all of them receive the same bytes.
    """
    by_ranges: dict[object, list[Shard]] = {}
    for shard in evidence.output.shards:
        by_ranges.setdefault(shard.ranges, []).append(shard)
    for shards in by_ranges.values():
        first = shards[0].values.tobytes()
        if any(shard.values.tobytes() != first for shard in shards):
            assert evidence.mesh is not None
            return _arrange_replicas(evidence, evidence.mesh, shards)
    return None


def _arrange_replicas(evidence: Evidence, mesh: Mesh, shards: Sequence[Shard]) -> DifferingReplicas:
    """Return replicas with one leading dimension for each mesh axis that has several of them."""
    by_device = {shard.device: shard.values for shard in shards}
    devices, expected = tuple(by_device), evidence.expected[range_slices(shards[0].ranges)]
    axes = _replicated_axes(mesh, devices)
    corner = dict(zip(mesh.axis_names, mesh.coordinate(devices[0]), strict=True))
    sizes = tuple(mesh.shape[name] for name in axes)
    stacked = np.empty((*sizes, *expected.shape), shards[0].values.dtype)
    for position in np.ndindex(*sizes):
        coordinates = {**corner, **dict(zip(axes, position, strict=True))}
        device = mesh.device_at(coordinates[name] for name in mesh.axis_names)
        # A sharding that matches no spec can have replicas on some of these devices only.
        stacked[position] = by_device.get(device, shards[0].values)
    replicas = ReplicaValues(
        output_index=0,
        n_outputs=1,
        body="",
        source=UNKNOWN_LOCATION,
        mesh_axes=axes,
        values=stacked,
    )
    differing_axes = tuple(
        name
        for dim, name in enumerate(axes)
        if stacked.tobytes() != _repeat_first(stacked, dim).tobytes()
    )
    return DifferingReplicas(
        evidence=evidence,
        devices=devices,
        axes=differing_axes,
        replicas=replicas,
        expected=expected,
        start=tuple(start for start, _ in shards[0].ranges),
    )


def _replicated_axes(mesh: Mesh, devices: Sequence[int]) -> tuple[str, ...]:
    """Return the mesh axes along which the coordinates of some devices differ."""
    coordinates = [mesh.coordinate(device) for device in devices]
    return tuple(
        name
        for name, column in zip(mesh.axis_names, zip(*coordinates, strict=True), strict=True)
        if len(set(column)) > 1
    )


def _repeat_first(values: Array, dim: int) -> Array:
    return np.ascontiguousarray(np.broadcast_to(np.take(values, [0], dim), values.shape))


def replica_verdict(differing: DifferingReplicas, missing: str) -> Verdict:
    """Return the verdict with the values of this case; `missing` explains all cases."""
    axes = " and ".join(repr(axis) for axis in differing.axes)
    index, values = _first_difference(differing)
    expected = number_text(differing.expected[index])
    position = [start + step for start, step in zip(differing.start, index, strict=True)]
    name = f"{differing.evidence.name}{index_text(position)}"
    ellipsis = " ..." if len(values) > _MAX_VALUES else ""
    listed = ", ".join(map(number_text, values[:_MAX_VALUES])) + ellipsis
    details = {"mesh_axes": list(differing.axes), "missing": missing}
    if not missing:
        return Verdict(
            code="REPLICAS",
            what=f"Devices along {axes} must hold the same {name}; they hold {listed}. "
            f"Expected {expected}.",
            fix=f"make the replicas equal (psum or pmean over {axes}), or name the axis in "
            "out_specs.",
            details=details,
        )
    axis_argument = repr(differing.axes[0] if len(differing.axes) == 1 else differing.axes)
    return Verdict(
        code="REPLICAS",
        what=f"Devices along {axes} hold {listed} for {name}, {_REDUCTION_TEXT[missing]} "
        f"the expected {expected}: a {missing} is missing.",
        fix=f"return jax.lax.{missing}(value, {axis_argument}).",
        cause=f"missing_{missing}",
        details=details,
    )


def _first_difference(differing: DifferingReplicas) -> tuple[tuple[int, ...], list[Array]]:
    """Return the index of the first element that differs, and each device's value of it."""
    select = tuple(
        slice(None) if name in differing.axes else 0 for name in differing.replicas.mesh_axes
    )
    values = differing.replicas.values[select].reshape(-1, *differing.expected.shape)
    for index in np.ndindex(*differing.expected.shape):
        elements = [values[(device, *index)] for device in range(len(values))]
        if any(element.tobytes() != elements[0].tobytes() for element in elements):
            return tuple(map(int, index)), elements
    raise AssertionError("replicas that differ have an element that differs")
