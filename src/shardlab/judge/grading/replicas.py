"""Copies that should be equal and are not: which devices hold what, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardlab.checks.check_replicas import missing_reduction
from shardlab.checks.tolerance import is_close
from shardlab.findings.source import UNKNOWN_LOCATION
from shardlab.judge.grading.evidence import Array, Evidence, index, is_float, number, slices
from shardlab.judge.protocol.run_result import Shard
from shardlab.judge.verdict import Verdict
from shardlab.sharding.mesh import Mesh
from shardlab.simulator.run_records import ReplicaValues

_BECOMES = {
    "psum": "add up to",
    "pmean": "average to",
    "pmax": "have as their largest",
    "pmin": "have as their smallest",
}
_MOST_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Differing:
    """Devices that hold the same part of an output, and hold different numbers in it."""

    evidence: Evidence
    devices: tuple[int, ...]
    axes: tuple[str, ...]  # along which the copies differ
    copies: ReplicaValues
    meant: Array
    start: tuple[int, ...]  # of that part within the output

    @property
    def is_first_right(self) -> bool:
        """Say whether the first device along the axes holds just what was meant."""
        first = self.copies.values[(0,) * len(self.copies.mesh_axes)]
        return is_close(first, self.meant, self.evidence.atol)

    def missing(self) -> str:
        """Return the collective that makes of the copies what was meant, where one does."""
        held = self.copies.values.dtype
        eps = float(np.finfo(held).eps) if held.kind in "fc" else 1e-2 * is_float(held)
        # The reference rounds in another order than the devices: as far as a value may be off.
        scale = float(np.abs(self.meant.astype(np.float64)).max(initial=1e-30)) or 1.0
        return missing_reduction(
            self.copies, self.axes, self.meant, max(eps, self.evidence.atol / scale)
        )


def common_reduction(found: Sequence[Differing]) -> str:
    """Return the collective that is missing in every case, or nothing.

    Where the first device is right every time, the others have computed something else: that the
    right one happens to be the smallest or the largest says nothing.
    """
    names = {each.missing() for each in found}
    if len(names) != 1:
        return ""
    name = names.pop()
    is_told = len(found) > 2 or any(each.meant.size > 1 for each in found)
    if name in ("pmax", "pmin") and is_told and all(each.is_first_right for each in found):
        return ""
    return name


def differing(evidence: Evidence) -> Differing | None:
    """Return the first part of an output whose copies differ, bit for bit.

    NaN equals NaN. Sums that devices take over the same values are equal to the last bit on every
    device, since all of them get the same bytes; so nothing needs to be forgiven here.
    """
    groups: dict[object, list[int]] = {}
    shards = evidence.output.shards
    for at, shard in enumerate(shards):
        groups.setdefault(shard.ranges, []).append(at)
    for members in groups.values():
        held = [shards[at] for at in members]
        if any(each.values.tobytes() != held[0].values.tobytes() for each in held):
            assert evidence.mesh is not None
            return _arranged(evidence, held)
    return None


def _arranged(evidence: Evidence, held: Sequence[Shard]) -> Differing:
    """Return copies with one leading axis for each mesh axis along which there are several."""
    mesh = evidence.mesh
    assert mesh is not None
    by_device = {each.device: each.values for each in held}
    devices, meant = tuple(by_device), evidence.expected[slices(held[0].ranges)]
    along = _along(mesh, devices)
    corner = dict(zip(mesh.axis_names, mesh.coordinate(devices[0]), strict=True))
    sizes = tuple(mesh.shape[name] for name in along)
    stacked = np.empty((*sizes, *meant.shape), held[0].values.dtype)
    for place in np.ndindex(*sizes):
        at = {**corner, **dict(zip(along, place, strict=True))}
        # A layout that no spec describes may have copies on a part of these devices only.
        device = mesh.device_at(at[name] for name in mesh.axis_names)
        stacked[place] = by_device.get(device, held[0].values)
    copies = ReplicaValues(
        output_index=0,
        n_outputs=1,
        body="",
        source=UNKNOWN_LOCATION,
        mesh_axes=along,
        values=stacked,
    )
    axes = tuple(
        name
        for number, name in enumerate(along)
        if stacked.tobytes() != _first_along(stacked, number).tobytes()
    )
    start = tuple(first for first, _ in held[0].ranges)
    return Differing(
        evidence=evidence, devices=devices, axes=axes, copies=copies, meant=meant, start=start
    )


def _along(mesh: Mesh, devices: Sequence[int]) -> tuple[str, ...]:
    """Return the mesh axes along which some devices, all those at a corner of them, lie."""
    places = [mesh.coordinate(device) for device in devices]
    return tuple(
        name
        for name, column in zip(mesh.axis_names, zip(*places, strict=True), strict=True)
        if len(set(column)) > 1
    )


def _first_along(values: Array, axis: int) -> Array:
    return np.ascontiguousarray(np.broadcast_to(np.take(values, [0], axis), values.shape))


def verdict(found: Differing, missing: str) -> Verdict:
    """Return the verdict in the numbers of this case; `missing` is what all cases agree on."""
    over = " and ".join(repr(axis) for axis in found.axes)
    at, held = _element(found)
    want = number(found.meant[at])
    place = [start + step for start, step in zip(found.start, at, strict=True)]
    name = f"{found.evidence.name}{index(place)}"
    told = ", ".join(map(number, held[:_MOST_SHOWN])) + (" ..." if len(held) > _MOST_SHOWN else "")
    details = {"mesh_axes": list(found.axes), "missing": missing}
    if not missing:
        what = f"Devices along {over} should hold the same {name} and hold {told}; want {want}."
        fix = f"make the copies equal (psum or pmean over {over}), or name the axis in out_specs."
        return Verdict(code="REPLICAS", what=what, fix=fix, details=details)
    what = (
        f"Devices along {over} hold {told} for {name}, which {_BECOMES[missing]} the answer "
        f"{want}: a {missing} is missing."
    )
    written = repr(found.axes[0]) if len(found.axes) == 1 else repr(found.axes)
    fix = f"return jax.lax.{missing}(value, {written})."
    return Verdict(code="REPLICAS", what=what, fix=fix, cause=f"missing_{missing}", details=details)


def _element(found: Differing) -> tuple[tuple[int, ...], list[Array]]:
    """Return the first element that differs, and what each device along the axes has there."""
    rows = found.copies.values
    take = tuple(slice(None) if name in found.axes else 0 for name in found.copies.mesh_axes)
    values = rows[take].reshape(-1, *found.meant.shape)
    at = next(
        tuple(map(int, at))
        for at in np.ndindex(*found.meant.shape)
        if any(values[(n, *at)].tobytes() != values[(0, *at)].tobytes() for n in range(len(values)))
    )
    return at, [values[(n, *at)] for n in range(len(values))]
