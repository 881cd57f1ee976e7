"""The moves: which collectives take one layout of an array to another, and what they send.

>>> before, after = (layout("8x16", spec, "d=2,m=4") for spec in ("d", "None,m"))
>>> for move in reshard(before, after):
...     print(move)
slice over 'm', array axis 1: free; P('d') -> P('d', 'm')
all_gather over 'd', array axis 0: each device sends 64 bytes; P('d', 'm') -> P(None, 'm')

The route: a cheapest path through the ways of cutting one array on one mesh.

A place on the route is a tuple with, for each array axis, the mesh axes that cut it. Four steps
lead on: `slice` adds a mesh axis at the minor end, `all_gather` takes mesh axes off the minor end,
`all_to_all` carries them from one array axis to another, `collective_permute` hands whole pieces
round. Dijkstra's algorithm finds the path on which each device sends the fewest bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import prod
from typing import Any

from shardlab.errors import LayoutMismatch
from shardlab.sharding.dtype import Dtype
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

Place = tuple[tuple[str, ...], ...]

# The places grow like the factorial of the mesh axes that change; five take seconds.
_MAX_SEARCHED = 4


@dataclass(frozen=True, kw_only=True)
class Route:
    """The question: an array on a mesh, where it starts and where it should end."""

    shape: tuple[int, ...]
    mesh: Mesh
    dtype: Dtype
    start: Place
    goal: Place

    @cached_property
    def moving(self) -> tuple[str, ...]:
        """The mesh axes that may have to move: all but those in a common beginning.

        Devices that differ along a common beginning hold different parts of the array at both
        ends, so nothing that one of them holds is of use to the other.
        """
        names: list[str] = []
        for old, new, n_kept in zip(self.start, self.goal, self.kept, strict=True):
            names += [*old[n_kept:], *new[n_kept:]]
        return tuple(dict.fromkeys(names))

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """How many mesh axes of each array axis stay as they are, counted from the major end."""
        return tuple(map(_n_common, self.start, self.goal))

    def n_parts(self, names: tuple[str, ...]) -> int:
        return prod([self.mesh.shape[name] for name in names])

    def local_bytes(self, place: Place) -> int:
        """Return the bytes of one device's piece."""
        n_elements = prod(self.shape) // prod(map(self.n_parts, place))
        return self.dtype.n_bytes(n_elements)

    def fits(self, place: Place, array_axis: int) -> bool:
        return self.shape[array_axis] % self.n_parts(place[array_axis]) == 0


@dataclass(frozen=True, kw_only=True)
class Step:
    """One collective on the way, and the place it leads to."""

    kind: str
    mesh_axes: tuple[str, ...]
    after: Place
    sent_bytes: int
    array_axis: int | None = None
    to_array_axis: int | None = None


def cheapest_route(route: Route) -> list[Step]:
    """Return the steps from start to goal on which each device sends the fewest bytes.

    Ties go to fewer steps. When more than four mesh axes change at once, the plain way is taken:
    gather what differs, then slice.
    """
    if len(route.moving) > _MAX_SEARCHED:
        return list(_plain_route(route))
    order = count()  # settles ties, so that steps are never compared
    queue: list[tuple[int, int, int, Place, list[Step]]] = [(0, 0, next(order), route.start, [])]
    best = {route.start: (0, 0)}
    while queue:
        sent, n_steps, _, place, path = heapq.heappop(queue)
        if place == route.goal:
            return path
        if best[place] < (sent, n_steps):
            continue
        for step in _steps(route, place):
            cost = (sent + step.sent_bytes, n_steps + 1)
            if step.after not in best or cost < best[step.after]:
                best[step.after] = cost
                heapq.heappush(queue, (*cost, next(order), step.after, [*path, step]))
    raise AssertionError("gathering everything and slicing always leads to the goal")


def _steps(route: Route, place: Place) -> Iterator[Step]:
    yield from _permutes(route, place)
    yield from _slices(route, place)
    yield from _all_to_alls(route, place)
    yield from _all_gathers(route, place)


def _slices(route: Route, place: Place) -> Iterator[Step]:
    used = {name for names in place for name in names}
    for name in route.moving:
        for at in range(len(place)):
            after = _replaced(place, {at: (*place[at], name)})
            if name not in used and route.fits(after, at):
                yield Step(
                    kind="slice", mesh_axes=(name,), after=after, sent_bytes=0, array_axis=at
                )


def _all_gathers(route: Route, place: Place) -> Iterator[Step]:
    local = route.local_bytes(place)
    for at, tail in _tails(route, place):
        after = _replaced(place, {at: place[at][: -len(tail)]})
        sent = local * (route.n_parts(tail) - 1)
        yield Step(kind="all_gather", mesh_axes=tail, after=after, sent_bytes=sent, array_axis=at)


def _all_to_alls(route: Route, place: Place) -> Iterator[Step]:
    local = route.local_bytes(place)
    for at, tail in _tails(route, place):
        g = route.n_parts(tail)
        sent = -(-local * (g - 1) // g)  # rounded up, for packed int4
        for to in range(len(place)):
            after = _replaced(place, {at: place[at][: -len(tail)], to: (*place[to], *tail)})
            if to != at and route.fits(after, to):
                yield Step(
                    kind="all_to_all",
                    mesh_axes=tail,
                    after=after,
                    sent_bytes=sent,
                    array_axis=at,
                    to_array_axis=to,
                )


def _permutes(route: Route, place: Place) -> Iterator[Step]:
    """Every place whose pieces have the same shape: devices only have to swap whole pieces."""
    local = route.local_bytes(place)
    parts = [route.n_parts(names[n:]) for names, n in zip(place, route.kept, strict=True)]
    for tails in _arrangements(route, parts, route.moving):
        heads = (names[:n] for names, n in zip(place, route.kept, strict=True))
        after = tuple(head + tail for head, tail in zip(heads, tails, strict=True))
        if after != place:
            changed = [names for pair in zip(place, after, strict=True) for names in _change(*pair)]
            names = tuple(dict.fromkeys(name for each in changed for name in each))
            yield Step(kind="collective_permute", mesh_axes=names, after=after, sent_bytes=local)


def _arrangements(route: Route, parts: list[int], free: tuple[str, ...]) -> Iterator[Place]:
    """Every way to reach these numbers of parts with the free mesh axes, each used once."""
    if not parts:
        yield ()
        return
    for names in _ordered_products(route, parts[0], free):
        left = tuple(name for name in free if name not in names)
        for rest in _arrangements(route, parts[1:], left):
            yield (names, *rest)


def _ordered_products(
    route: Route, n_parts: int, free: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    if n_parts == 1:
        yield ()
        return
    for name in free:
        quotient, left = divmod(n_parts, route.mesh.shape[name])
        if not left:
            others = tuple(each for each in free if each != name)
            for rest in _ordered_products(route, quotient, others):
                yield (name, *rest)


def _change(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return () if old == new else (old, new)


def _tails(route: Route, place: Place) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each run of mesh axes at the minor end of an array axis, beyond what stays."""
    for at, (names, n_kept) in enumerate(zip(place, route.kept, strict=True)):
        for start in range(len(names) - 1, n_kept - 1, -1):
            yield at, names[start:]


def _plain_route(route: Route) -> Iterator[Step]:
    place = route.start
    for at, n_kept in enumerate(route.kept):
        tail = place[at][n_kept:]
        if tail:
            sent = route.local_bytes(place) * (route.n_parts(tail) - 1)
            place = _replaced(place, {at: place[at][:n_kept]})
            yield Step(
                kind="all_gather", mesh_axes=tail, after=place, sent_bytes=sent, array_axis=at
            )
    for at, names in enumerate(route.goal):
        if tail := names[len(place[at]) :]:
            place = _replaced(place, {at: names})
            yield Step(kind="slice", mesh_axes=tail, after=place, sent_bytes=0, array_axis=at)


def _n_common(old: tuple[str, ...], new: tuple[str, ...]) -> int:
    pairs = zip(old, new, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _replaced(place: Place, changes: dict[int, tuple[str, ...]]) -> Place:
    return tuple(changes.get(at, names) for at, names in enumerate(place))


@dataclass(frozen=True, kw_only=True)
class ReshardStep:
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


def reshard(before: Layout, after: Layout) -> tuple[ReshardStep, ...]:
    """Return the cheapest sequence of collectives that takes `before` to `after`.

    >>> whole, cut = layout("8", "", "x=4"), layout("8", "x", "x=4")
    >>> [(move.kind, move.sent_bytes) for move in reshard(whole, cut)]
    [('slice', 0)]
    >>> [(move.kind, move.sent_bytes) for move in reshard(cut, whole)]
    [('all_gather', 24)]
    >>> reshard(cut, cut)
    ()

    Cheapest by the bytes that one device sends on rings of g devices: all_gather (g-1)/g of
    the gathered array, all_to_all (g-1)/g of the local piece, collective_permute the local piece,
    slice nothing; then by the number of steps. The XLA compiler may choose another sequence.
    """
    _check_same_array(before, after)
    start, goal = _route_end(before), _route_end(after)
    steps = cheapest_route(
        Route(shape=before.shape, mesh=before.mesh, dtype=before.dtype, start=start, goal=goal)
    )
    found: list[ReshardStep] = []
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


def _move(before: Layout, after: Layout, step: Step) -> ReshardStep:
    return ReshardStep(
        kind=step.kind,
        mesh_axes=step.mesh_axes,
        before=before,
        after=after,
        sent_bytes=step.sent_bytes,
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
