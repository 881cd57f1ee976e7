"""Detects collectives that only some devices reach: real devices block forever there."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab._jax.pending_deadlock import pending_deadlocks
from shardlab.errors import Deadlock
from shardlab.simulator.interpreter.rules.collectives import collective_axes
from shardlab.simulator.interpreter.stacked_array import Dim, MeshAxes, StackedArray, arrange_dims

_MAX_LISTED = 3  # devices on each side of the message


def check_all_devices_arrive(axes: MeshAxes, eqn: Any, *, now: bool = False) -> None:
    """Make the program fail if only some of the devices that a collective needs reach it.

    After a divergent branch or loop, `axes.active` is the mask of devices that run this code.
    Whether they really diverge depends on values, so it is checked when the program runs; `now` if
    the mask has values already.
    """
    if axes.active is None:
        return
    names = participating_axes(axes, eqn, axes.active)
    if names:
        _raise_if_diverged(axes, eqn, axes.active, names, now)


def participating_axes(axes: MeshAxes, eqn: Any, active: StackedArray) -> tuple[str, ...]:
    """Return the mesh axes along which all devices must agree to run the collective."""
    # XLA lowers ppermute to a collective-permute without replica groups: its rendezvous spans
    # every device of the mesh, also along axes that it does not communicate over.
    if eqn.primitive.name.startswith("ppermute"):
        return axes.in_mesh_order(active.device_axes)
    return axes.in_mesh_order(set(collective_axes(eqn.params)) & set(active.device_axes))


def _raise_if_diverged(
    axes: MeshAxes, eqn: Any, active: StackedArray, participating: tuple[str, ...], now: bool
) -> None:
    groups = tuple(n for n in axes.in_mesh_order(active.device_axes) if n not in participating)
    names = (*groups, *participating)
    dims: tuple[Dim, ...] = names
    mask = arrange_dims(active, dims, active.array.shape)
    # With check_vma=True JAX traces psum to the primitive psum_invariant; users write psum.
    name = eqn.primitive.name.removesuffix("_invariant")
    mesh_axes = ", ".join(map(repr, collective_axes(eqn.params)))
    where = f"{name} at {_jax.source_line(eqn)}, under {axes.diverged_at}"

    def check_mask(mask: Any) -> None:
        arrived = np.asarray(mask)
        # Each group of participating devices must agree; groups may differ from each other.
        along = tuple(range(len(groups), arrived.ndim))
        if (arrived.max(along) != arrived.min(along)).any():
            deadlock = Deadlock(
                f"Some devices never reach this {name} over {mesh_axes}: "
                f"{_describe_devices(names, arrived)}. "
                "Real devices block forever here, or receive wrong values.",
                where=where,
                fix=f"call {name} on every device and select its input or its result with "
                "jnp.where; or make the predicate equal on all devices (pmax of it).",
            )
            deadlock.location = _jax.user_location(eqn)
            if not now:
                pending_deadlocks.append(deadlock)
            raise deadlock

    if now:
        check_mask(mask)
        return
    # A debug callback has an effect, so XLA does not remove it although nothing uses its result.
    jax.debug.callback(check_mask, mask)


def _describe_devices(names: tuple[str, ...], arrived: np.ndarray[Any, Any]) -> str:
    devices: dict[bool, list[str]] = {True: [], False: []}
    for coordinate in itertools.product(*(range(n) for n in arrived.shape)):
        label = " ".join(f"{n}={i}" for n, i in zip(names, coordinate, strict=True))
        devices[bool(arrived[coordinate])].append(label)
    reached, missing = (
        ", ".join(group[:_MAX_LISTED]) + (" ..." if len(group) > _MAX_LISTED else "")
        for group in (devices[True], devices[False])
    )
    return f"reached by {reached}; not by {missing}"
