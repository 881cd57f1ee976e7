"""Collectives that some devices would never reach: real devices hang, the simulation says so."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from shardlab.engine import _jax
from shardlab.engine.rules.calls import called_jaxpr
from shardlab.engine.rules.collectives import COLLECTIVES, collective_axes
from shardlab.engine.spread import Axes, Slot, Spread, arrange
from shardlab.errors import Deadlock


def watch(axes: Axes, eqn: Any, predicate: Spread, jaxprs: Sequence[Any]) -> None:
    """Make the program fail if `predicate` parts devices that a collective in `jaxprs` needs.

    A collective over axes A under a predicate that varies over V is unsafe where A and V meet; a
    ppermute wherever V is not empty, since its rendezvous spans all devices. Whether devices do
    part is a matter of values, so it is looked at when the program runs.
    """
    for inner in jaxprs:
        for collective in _collectives(inner):
            meets = _meeting(axes, collective, predicate)
            if meets:
                _fail_if_parted(axes, eqn, predicate, collective, meets)
                return


def _collectives(jaxpr: Any) -> Iterator[Any]:
    for eqn in _jax.open_jaxpr(jaxpr)[0].eqns:
        if eqn.primitive.name in COLLECTIVES:
            yield eqn
        for body in _bodies(eqn):
            yield from _collectives(body)


def _bodies(eqn: Any) -> list[Any]:
    body = called_jaxpr(eqn.primitive.name, eqn.params)
    keys = ("jaxpr", "cond_jaxpr", "body_jaxpr")
    found = [body] if body is not None else [eqn.params[k] for k in keys if k in eqn.params]
    return [*found, *eqn.params.get("branches", ())]


def _meeting(axes: Axes, collective: Any, predicate: Spread) -> tuple[str, ...]:
    if collective.primitive.name.startswith("ppermute"):
        return axes.ordered(predicate.at)
    return axes.ordered(set(collective_axes(collective.params)) & set(predicate.at))


def _fail_if_parted(
    axes: Axes, eqn: Any, predicate: Spread, collective: Any, meets: tuple[str, ...]
) -> None:
    others = tuple(n for n in axes.ordered(predicate.at) if n not in meets)
    names = (*others, *meets)
    slots: tuple[Slot, ...] = (*names, *predicate.local_slots)
    array = arrange(predicate, slots, predicate.array.shape)
    name = collective.primitive.name
    where = f"{name} at {_jax.source_line(collective)}, under {_jax.source_line(eqn)}"

    def check(array: Any) -> None:
        parted = _parted(np.asarray(array), len(others))
        if parted is not None:
            raise Deadlock(
                f"Devices part ways before a {name} over {collective_axes(collective.params)}: "
                f"{_who(names, parted)}. On real devices this hangs or mixes values.",
                where=where,
                fix=f"call {name} on every device and choose its result afterwards "
                "(jnp.where), or make the predicate the same everywhere (pmax of it).",
            )

    jax.debug.callback(check, array)


def _parted(array: np.ndarray[Any, Any], n_others: int) -> np.ndarray[Any, Any] | None:
    """Return the predicate by device if two that must meet disagree."""
    meeting = tuple(range(n_others, array.ndim))
    return array if (array.max(meeting) != array.min(meeting)).any() else None


def _who(names: tuple[str, ...], array: np.ndarray[Any, Any]) -> str:
    by_choice: dict[Any, list[str]] = {}
    for coordinate in itertools.product(*(range(n) for n in array.shape)):
        device = " ".join(f"{n}={i}" for n, i in zip(names, coordinate, strict=True))
        by_choice.setdefault(array[coordinate].item(), []).append(device)
    return "; ".join(
        f"{', '.join(devices[:3])}{' ...' if len(devices) > 3 else ''} go with {choice}"
        for choice, devices in by_choice.items()
    )
