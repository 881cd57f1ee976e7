"""The moves: which collectives take one layout of an array to another, and what they send.

>>> before, after = (layout("8x16", spec, "d=2,m=4") for spec in ("d", "None,m"))
>>> for move in moves(before, after):
...     print(move)
slice over 'm', array axis 1: free; P('d') -> P('d', 'm')
all_gather over 'd', array axis 0: each device sends 64 bytes; P('d', 'm') -> P(None, 'm')
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from shardlab.errors import LayoutMismatch
from shardlab.layouts.routes import Route, Step, cheapest_route
from shardlab.layouts.shards import Layout, layout
from shardlab.layouts.spec import Spec


@dataclass(frozen=True)
class Move:
    """One collective that every device takes part in, from layout `before` to `after`.

    `kind` is all_gather, all_to_all, collective_permute, or slice, which is local and free.
    `sent_bytes` is what one device sends on a ring; in a permute, devices that already hold
    their piece send nothing, the others this much.
    """

    kind: str
    mesh_axes: tuple[str, ...]
    before: Layout
    after: Layout
    sent_bytes: int
    array_axis: int | None = None
    to_array_axis: int | None = None

    @property
    def group_size(self) -> int:
        """The number of devices that talk to each other."""
        return prod(self.before.mesh.shape[name] for name in self.mesh_axes)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "kind": self.kind,
            "mesh_axes": list(self.mesh_axes),
            "array_axis": self.array_axis,
            "to_array_axis": self.to_array_axis,
            "group_size": self.group_size,
            "sent_bytes": self.sent_bytes,
            "before": str(self.before.spec),
            "after": str(self.after.spec),
        }

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.mesh_axes))
        place = "" if self.array_axis is None else f", array axis {self.array_axis}"
        place += "" if self.to_array_axis is None else f" to {self.to_array_axis}"
        sends = f"each device sends {self.sent_bytes:,} bytes" if self.sent_bytes else "free"
        return f"{self.kind} over {names}{place}: {sends}; {self.before.spec} -> {self.after.spec}"


def moves(before: Layout, after: Layout) -> tuple[Move, ...]:
    """Return the cheapest sequence of collectives that takes `before` to `after`.

    >>> whole, cut = layout("8", "", "x=4"), layout("8", "x", "x=4")
    >>> [(move.kind, move.sent_bytes) for move in moves(whole, cut)]
    [('slice', 0)]
    >>> [(move.kind, move.sent_bytes) for move in moves(cut, whole)]
    [('all_gather', 24)]
    >>> moves(cut, cut)
    ()

    Cheapest by the bytes that one device sends on rings of g devices: all_gather (g-1)/g of
    the gathered array, all_to_all (g-1)/g of the local piece, collective_permute the local piece,
    slice nothing; then by the number of steps. The XLA compiler may choose another sequence.
    """
    _check_same_array(before, after)
    start, goal = _route_end(before), _route_end(after)
    steps = cheapest_route(Route(before.shape, before.mesh, before.dtype, start, goal))
    found: list[Move] = []
    here = before
    for at, step in enumerate(steps):
        there = after if at == len(steps) - 1 else _arrive(before, step)
        found.append(_move(here, there, step))
        here = there
    return tuple(found)


def _arrive(origin: Layout, step: Step) -> Layout:
    entries = list(step.after)
    while entries and not entries[-1]:
        entries.pop()
    return layout(origin.shape, Spec(*entries), origin.mesh, origin.dtype)


def _move(before: Layout, after: Layout, step: Step) -> Move:
    return Move(
        step.kind,
        step.mesh_axes,
        before,
        after,
        step.sent_bytes,
        array_axis=step.array_axis,
        to_array_axis=step.to_array_axis,
    )


def _route_end(end: Layout) -> tuple[tuple[str, ...], ...]:
    """Return the mesh axes of every array axis, without those of size 1, which cut nothing."""
    sizes = end.mesh.shape
    axes = [tuple(name for name in names if sizes[name] > 1) for names in end.spec.axes]
    return (*axes, *((),) * (len(end.shape) - len(axes)))


def _check_same_array(before: Layout, after: Layout) -> None:
    for word in ("shape", "dtype", "mesh"):
        first, second = getattr(before, word), getattr(after, word)
        if first != second:
            raise LayoutMismatch(
                f"The layouts have different {word}: {first} and {second}.",
                where=f"from {before.spec} to {after.spec}",
                fix=f"two layouts of one array on one mesh, with the same {word}.",
            )
    for end in (before, after):
        if end.spec.unreduced:
            raise LayoutMismatch(
                "Devices of an unreduced layout hold terms of a sum, not slices of the array.",
                where=f"from {before.spec} to {after.spec}",
                fix="reduce it first (psum or psum_scatter), then ask for the moves.",
            )
