"""Collectives that some devices never reach: real devices hang, the simulation says so."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import numpy as np

from shardlab import _jax
from shardlab._jax.pending_deadlock import pending_deadlocks
from shardlab.errors import Deadlock
from shardlab.simulator.interpreter.rules.collectives import collective_axes
from shardlab.simulator.interpreter.stacked_array import MeshAxes, Slot, StackedArray, arrange


def watch(axes: MeshAxes, eqn: Any) -> None:
    """Make the program fail if only some of the devices that a collective needs get there.

    Where a branch or a loop has parted the devices, `axes.active` says who runs this code. It
    matters along the mesh axes of the collective; for a ppermute along all, since its rendezvous
    spans every device. Whether devices do part is a matter of values, looked at as they run.
    """
    if axes.active is None:
        return
    meets = _meeting(axes, eqn, axes.active)
    if meets:
        _fail_if_parted(axes, eqn, axes.active, meets)


def _meeting(axes: MeshAxes, eqn: Any, active: StackedArray) -> tuple[str, ...]:
    if eqn.primitive.name.startswith("ppermute"):
        return axes.ordered(active.at)
    return axes.ordered(set(collective_axes(eqn.params)) & set(active.at))


def _fail_if_parted(axes: MeshAxes, eqn: Any, active: StackedArray, meets: tuple[str, ...]) -> None:
    others = tuple(n for n in axes.ordered(active.at) if n not in meets)
    names = (*others, *meets)
    slots: tuple[Slot, ...] = names
    array = arrange(active, slots, active.array.shape)
    name = eqn.primitive.name.removesuffix("_invariant")  # as a person writes it
    over = ", ".join(map(repr, collective_axes(eqn.params)))
    where = f"{name} at {_jax.source_line(eqn)}, under {axes.parted_at}"

    def check(array: Any) -> None:
        reached = np.asarray(array)
        along = tuple(range(len(others), reached.ndim))
        if (reached.max(along) != reached.min(along)).any():
            found = Deadlock(
                f"Devices part ways before a {name} over {over}: {_who(names, reached)}. "
                "On real devices this hangs or mixes values.",
                where=where,
                fix=f"call {name} on every device and choose with jnp.where what goes into it, or "
                "what becomes of its result; or make the predicate the same everywhere (pmax of "
                "it).",
            )
            found.location = _jax.source_place(eqn)
            pending_deadlocks.append(found)
            raise found

    jax.debug.callback(check, array)


def _who(names: tuple[str, ...], reached: np.ndarray[Any, Any]) -> str:
    devices: dict[bool, list[str]] = {True: [], False: []}
    for coordinate in itertools.product(*(range(n) for n in reached.shape)):
        label = " ".join(f"{n}={i}" for n, i in zip(names, coordinate, strict=True))
        devices[bool(reached[coordinate])].append(label)
    some, others = (
        ", ".join(group[:3]) + (" ..." if len(group) > 3 else "")
        for group in (devices[True], devices[False])
    )
    return f"reached by {some}; not by {others}"
