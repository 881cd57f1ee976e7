"""Resharding: which collectives take one layout of an array to another, and what they send.

>>> before, after = (layout("8x16", spec, "d=2,m=4") for spec in ("d", "None,m"))
>>> for step in reshard(before, after):
...     print(step)
slice over 'm', dimension 1: free; P('d') -> P('d', 'm')
all_gather over 'd', dimension 0: each device sends 64 bytes; P('d', 'm') -> P(None, 'm')

The sequence is a shortest path. A node is an assignment: for each dimension, the mesh axes it is
sharded over. Four kinds of step connect nodes: `slice` adds a mesh axis at the minor end of a
dimension, `all_gather` removes mesh axes from the minor end, `all_to_all` moves them to another
dimension, `collective_permute` exchanges shards of equal shape between devices. Dijkstra's
algorithm finds the path on which each device sends the fewest bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from math import prod
from typing import Any

from shardlab._text.units import bytes_text
from shardlab.errors import LayoutMismatch
from shardlab.sharding.dtype import Dtype
from shardlab.sharding.layout import Layout, layout
from shardlab.sharding.mesh import Mesh
from shardlab.sharding.spec import Spec

Assignment = tuple[tuple[str, ...], ...]  # the mesh axes of each dimension, major first

# Assignments grow like the factorial of the mesh axes that change; five axes take seconds.
_MAX_SEARCHED_AXES = 4


@dataclass(frozen=True, kw_only=True)
class ReshardStep:
    """One collective over all devices, from layout `before` to layout `after`.

    `kind` is all_gather, all_to_all, collective_permute, or slice, which is local and free.
    `sent_bytes` is what one device sends on a ring; in a permute, a device that already holds its
    new shard sends nothing, the others send this much. `dim` is the dimension whose sharding
    changes; an all_to_all moves mesh axes from `dim` to `to_dim`.
    """

    kind: str
    mesh_axes: tuple[str, ...]
    before: Layout
    after: Layout
    sent_bytes: int
    dim: int | None = None
    to_dim: int | None = None

    @property
    def group_size(self) -> int:
        """The number of devices that communicate with each other."""
        return prod(self.before.mesh.shape[name] for name in self.mesh_axes)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "kind": self.kind,
            "mesh_axes": list(self.mesh_axes),
            "dim": self.dim,
            "to_dim": self.to_dim,
            "group_size": self.group_size,
            "sent_bytes": self.sent_bytes,
            "before": str(self.before.spec),
            "after": str(self.after.spec),
        }

    def __str__(self) -> str:
        names = ", ".join(map(repr, self.mesh_axes))
        dims = "" if self.dim is None else f", dimension {self.dim}"
        dims += "" if self.to_dim is None else f" to {self.to_dim}"
        cost = f"each device sends {self.sent_bytes:,} bytes" if self.sent_bytes else "free"
        return f"{self.kind} over {names}{dims}: {cost}; {self.before.spec} -> {self.after.spec}"


def reshard(before: Layout, after: Layout) -> tuple[ReshardStep, ...]:
    """Return the cheapest sequence of collectives that takes `before` to `after`.

    >>> replicated, sharded = layout("8", "", "x=4"), layout("8", "x", "x=4")
    >>> [(step.kind, step.sent_bytes) for step in reshard(replicated, sharded)]
    [('slice', 0)]
    >>> [(step.kind, step.sent_bytes) for step in reshard(sharded, replicated)]
    [('all_gather', 24)]
    >>> reshard(sharded, sharded)
    ()

    Cheapest by the bytes that one device sends on rings of g devices: all_gather (g-1)/g of
    the gathered array, all_to_all (g-1)/g of the local shard, collective_permute the local shard,
    slice nothing; then by the number of steps. The XLA compiler may choose another sequence.
    """
    _check_same_array(before, after)
    edges = find_cheapest_path(
        ReshardProblem(
            shape=before.shape,
            mesh=before.mesh,
            dtype=before.dtype,
            start=_layout_assignment(before),
            goal=_layout_assignment(after),
        )
    )
    steps: list[ReshardStep] = []
    current = before
    for index, edge in enumerate(edges):
        # The last step ends at `after` itself, whose spec may spell the assignment differently.
        is_last = index == len(edges) - 1
        following = after if is_last else _assignment_layout(before, edge.after)
        steps.append(
            ReshardStep(
                kind=edge.kind,
                mesh_axes=edge.mesh_axes,
                before=current,
                after=following,
                sent_bytes=edge.sent_bytes,
                dim=edge.dim,
                to_dim=edge.to_dim,
            )
        )
        current = following
    return tuple(steps)


def _assignment_layout(original: Layout, assignment: Assignment) -> Layout:
    entries = list(assignment)
    while entries and not entries[-1]:
        entries.pop()
    return layout(original.shape, Spec(*entries), original.mesh, original.dtype)


def _layout_assignment(end: Layout) -> Assignment:
    """Return the mesh axes of every dimension, without axes of size 1, which do not shard."""
    sizes = end.mesh.shape
    axes = [tuple(name for name in names if sizes[name] > 1) for names in end.spec.axes]
    return (*axes, *((),) * (len(end.shape) - len(axes)))


def _check_same_array(before: Layout, after: Layout) -> None:
    for field in ("shape", "dtype", "mesh"):
        first, second = getattr(before, field), getattr(after, field)
        if first != second:
            raise LayoutMismatch(
                f"The layouts have different {field}: {first} and {second}.",
                where=f"from {before.spec} to {after.spec}",
                fix=f"two layouts of one array on one mesh, with the same {field}.",
            )
    for end in (before, after):
        if end.spec.unreduced:
            raise LayoutMismatch(
                "Devices of an unreduced layout hold partial sums, not shards of the array.",
                where=f"from {before.spec} to {after.spec}",
                fix="reduce it first (psum or psum_scatter), then reshard the result.",
            )


# What one device sends on a ring of g devices.
_COST_RULES = {
    "all_gather": "(g-1)/g of the gathered shard",
    "all_to_all": "(g-1)/g of its shard",
    "collective_permute": "its shard",
}


def reshard_text(before: Layout, after: Layout, steps: Sequence[ReshardStep]) -> str:
    """Return the steps as a numbered list, each with the rule behind its bytes.

    >>> columns, rows = layout("8x16", "None,model", "model=4"), layout("8x16", "model", "model=4")
    >>> print(reshard_text(columns, rows, reshard(columns, rows)))
    From P(None, 'model') to P('model')
      1. all_to_all over model: P(None, 'model') -> P('model')
         each device sends 96 bytes: (g-1)/g of its shard, on a ring of g=4
    """
    return "\n".join(_reshard_lines(before, after, steps))


def _reshard_lines(before: Layout, after: Layout, steps: Sequence[ReshardStep]) -> Iterator[str]:
    yield f"From {before.spec} to {after.spec}"
    if not steps:
        yield "  no communication: each device already holds its shard"
    for number, step in enumerate(steps, start=1):
        names = ", ".join(step.mesh_axes)
        yield f"  {number}. {step.kind} over {names}: {step.before.spec} -> {step.after.spec}"
        yield f"     {_cost_text(step)}"
    if len(steps) > 1:
        yield f"  total: each device sends {bytes_text(sum(step.sent_bytes for step in steps))}"


def _cost_text(step: ReshardStep) -> str:
    if step.kind == "slice":
        return "free: each device keeps a slice of its shard"
    rule = f"{_COST_RULES[step.kind]}, on a ring of g={step.group_size}"
    if step.kind == "collective_permute":
        rule = f"{_COST_RULES[step.kind]}, to one other device"
    return f"each device sends {bytes_text(step.sent_bytes)}: {rule}"


@dataclass(frozen=True, kw_only=True)
class ReshardProblem:
    """An array on a mesh, the assignment it has and the assignment it should get."""

    shape: tuple[int, ...]
    mesh: Mesh
    dtype: Dtype
    start: Assignment
    goal: Assignment

    @cached_property
    def moving_axes(self) -> tuple[str, ...]:
        """The mesh axes that may have to move: all that are not in a common prefix."""
        # Devices that differ along a common prefix hold disjoint parts of the array before and
        # after, so no data of one of them is of use to the other.
        names: list[str] = []
        for old, new, n_fixed in zip(self.start, self.goal, self.n_fixed_axes, strict=True):
            names += [*old[n_fixed:], *new[n_fixed:]]
        return tuple(dict.fromkeys(names))

    @cached_property
    def n_fixed_axes(self) -> tuple[int, ...]:
        """The length of the common prefix of start and goal in each dimension."""
        return tuple(map(_common_prefix_length, self.start, self.goal))

    def count_shards(self, names: tuple[str, ...]) -> int:
        """Return the number of shards over these mesh axes."""
        return prod([self.mesh.shape[name] for name in names])

    def shard_bytes(self, assignment: Assignment) -> int:
        """Return the bytes of one device's shard."""
        n_elements = prod(self.shape) // prod(map(self.count_shards, assignment))
        return self.dtype.n_bytes(n_elements)

    def is_divisible(self, assignment: Assignment, dim: int) -> bool:
        """Return whether the size of a dimension is divisible by its number of shards."""
        return self.shape[dim] % self.count_shards(assignment[dim]) == 0


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One collective of a path, and the assignment it leads to."""

    kind: str
    mesh_axes: tuple[str, ...]
    after: Assignment
    sent_bytes: int
    dim: int | None = None
    to_dim: int | None = None


def find_cheapest_path(problem: ReshardProblem) -> list[Edge]:
    """Return the path from start to goal on which each device sends the fewest bytes.

    Ties go to fewer steps. If more than four mesh axes change at once, the result is the direct
    path: gather what differs, then slice.
    """
    if len(problem.moving_axes) > _MAX_SEARCHED_AXES:
        return list(_gather_then_slice(problem))
    order = count()  # breaks ties, so that heapq never compares edges
    # Entries: bytes sent, number of steps, tie breaker, assignment, path to it.
    queue: list[tuple[int, int, int, Assignment, list[Edge]]]
    queue = [(0, 0, next(order), problem.start, [])]
    best = {problem.start: (0, 0)}
    while queue:
        sent, n_steps, _, assignment, path = heapq.heappop(queue)
        if assignment == problem.goal:
            return path
        if best[assignment] < (sent, n_steps):  # a cheaper path to it was pushed later
            continue
        for edge in _edges(problem, assignment):
            cost = (sent + edge.sent_bytes, n_steps + 1)
            if edge.after not in best or cost < best[edge.after]:
                best[edge.after] = cost
                heapq.heappush(queue, (*cost, next(order), edge.after, [*path, edge]))
    raise AssertionError("gathering everything and slicing always leads to the goal")


def _edges(problem: ReshardProblem, assignment: Assignment) -> Iterator[Edge]:
    # This order decides between paths of equal bytes and length.
    yield from _permute_edges(problem, assignment)
    yield from _slice_edges(problem, assignment)
    yield from _all_to_all_edges(problem, assignment)
    yield from _all_gather_edges(problem, assignment)


def _slice_edges(problem: ReshardProblem, assignment: Assignment) -> Iterator[Edge]:
    used = {name for names in assignment for name in names}
    for name in problem.moving_axes:
        for dim in range(len(assignment)):
            # Only at the minor end: a new major axis would reorder the shards of all devices.
            after = _replace_dims(assignment, {dim: (*assignment[dim], name)})
            if name not in used and problem.is_divisible(after, dim):
                yield Edge(kind="slice", mesh_axes=(name,), after=after, sent_bytes=0, dim=dim)


def _all_gather_edges(problem: ReshardProblem, assignment: Assignment) -> Iterator[Edge]:
    local = problem.shard_bytes(assignment)
    for dim, tail in _minor_axes(problem, assignment):
        after = _replace_dims(assignment, {dim: assignment[dim][: -len(tail)]})
        # On a ring every device forwards all shards but one: (g-1)/g of the gathered array.
        sent = local * (problem.count_shards(tail) - 1)
        yield Edge(kind="all_gather", mesh_axes=tail, after=after, sent_bytes=sent, dim=dim)


def _all_to_all_edges(problem: ReshardProblem, assignment: Assignment) -> Iterator[Edge]:
    local = problem.shard_bytes(assignment)
    for dim, tail in _minor_axes(problem, assignment):
        group_size = problem.count_shards(tail)
        sent = -(-local * (group_size - 1) // group_size)  # rounded up, for packed int4
        for to_dim in range(len(assignment)):
            changes = {dim: assignment[dim][: -len(tail)], to_dim: (*assignment[to_dim], *tail)}
            after = _replace_dims(assignment, changes)
            if to_dim != dim and problem.is_divisible(after, to_dim):
                yield Edge(
                    kind="all_to_all",
                    mesh_axes=tail,
                    after=after,
                    sent_bytes=sent,
                    dim=dim,
                    to_dim=to_dim,
                )


def _permute_edges(problem: ReshardProblem, assignment: Assignment) -> Iterator[Edge]:
    """Yield every assignment with shards of the same shape: devices only swap full shards."""
    local = problem.shard_bytes(assignment)
    n_fixed = problem.n_fixed_axes
    heads = [names[:n] for names, n in zip(assignment, n_fixed, strict=True)]
    # The fixed prefix stays; the rest must give the same number of shards in each dimension.
    counts = [problem.count_shards(names[n:]) for names, n in zip(assignment, n_fixed, strict=True)]
    for tails in _assignments_with_counts(problem, counts, problem.moving_axes):
        after = tuple(head + tail for head, tail in zip(heads, tails, strict=True))
        if after == assignment:
            continue
        # All senders and receivers differ only along the mesh axes of the changed dimensions.
        changed = [
            name
            for old, new in zip(assignment, after, strict=True)
            if old != new
            for name in (*old, *new)
        ]
        names = tuple(dict.fromkeys(changed))
        yield Edge(kind="collective_permute", mesh_axes=names, after=after, sent_bytes=local)


def _assignments_with_counts(
    problem: ReshardProblem, counts: list[int], free: tuple[str, ...]
) -> Iterator[Assignment]:
    """Yield every way to get these shard counts from the free mesh axes, each used once."""
    if not counts:
        yield ()
        return
    for names in _axes_with_product(problem, counts[0], free):
        remaining = tuple(name for name in free if name not in names)
        for rest in _assignments_with_counts(problem, counts[1:], remaining):
            yield (names, *rest)


def _axes_with_product(
    problem: ReshardProblem, n_shards: int, free: tuple[str, ...]
) -> Iterator[tuple[str, ...]]:
    """Yield every ordered choice of free mesh axes whose sizes multiply to `n_shards`."""
    if n_shards == 1:
        yield ()
        return
    for name in free:
        quotient, remainder = divmod(n_shards, problem.mesh.shape[name])
        if not remainder:
            remaining = tuple(axis for axis in free if axis != name)
            for rest in _axes_with_product(problem, quotient, remaining):
                yield (name, *rest)


def _minor_axes(
    problem: ReshardProblem, assignment: Assignment
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield each run of mesh axes at the minor end of a dimension, without the fixed prefix."""
    for dim, (names, n_fixed) in enumerate(zip(assignment, problem.n_fixed_axes, strict=True)):
        for start in range(len(names) - 1, n_fixed - 1, -1):
            yield dim, names[start:]


def _gather_then_slice(problem: ReshardProblem) -> Iterator[Edge]:
    # Rarely the fewest bytes, but always valid, and linear in the number of mesh axes.
    current = problem.start
    for dim, n_fixed in enumerate(problem.n_fixed_axes):
        tail = current[dim][n_fixed:]
        if tail:
            sent = problem.shard_bytes(current) * (problem.count_shards(tail) - 1)
            current = _replace_dims(current, {dim: current[dim][:n_fixed]})
            yield Edge(kind="all_gather", mesh_axes=tail, after=current, sent_bytes=sent, dim=dim)
    for dim, names in enumerate(problem.goal):
        if tail := names[len(current[dim]) :]:
            current = _replace_dims(current, {dim: names})
            yield Edge(kind="slice", mesh_axes=tail, after=current, sent_bytes=0, dim=dim)


def _common_prefix_length(old: tuple[str, ...], new: tuple[str, ...]) -> int:
    pairs = zip(old, new, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _replace_dims(assignment: Assignment, changes: dict[int, tuple[str, ...]]) -> Assignment:
    return tuple(changes.get(dim, names) for dim, names in enumerate(assignment))
