"""The search for the sequence of collectives with the fewest bytes between two layouts.

A node is an assignment: for each dimension, the mesh axes (or sub-axes) it is sharded over. Four
kinds of step connect nodes: `slice` adds a mesh axis at the minor end of a dimension, `all_gather`
removes mesh axes from the minor end, `all_to_all` moves them to another dimension,
`collective_permute` exchanges shards of equal shape between devices.

The search is A*. What is left to send has an exact lower bound: each device must receive the part
of its goal shard that it does not hold. One step receives just that, so the bound is consistent.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import count, product
from math import lcm, prod

from shardlab.sharding.dtype import Dtype
from shardlab.sharding.sub_axes import Assignment

# Of 300 random pairs of layouts on meshes of up to five axes, 298 need fewer expansions.
_MAX_EXPANSIONS = 400
# A permute of shards that do not line up (axes of size 2 and 3) is compared device by device.
_MAX_COMPARED_DEVICES = 512


@dataclass(frozen=True, kw_only=True)
class ReshardProblem:
    """An array on mesh axes, the assignment it has and the assignment it should get."""

    shape: tuple[int, ...]
    axis_sizes: dict[str, int]
    dtype: Dtype
    start: Assignment
    goal: Assignment

    @cached_property
    def n_devices(self) -> int:
        return prod(self.axis_sizes.values())

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

    @cached_property
    def max_counts(self) -> tuple[int, ...]:
        """The most shards of each dimension that can be of use on the way."""
        # Finer than both ends together: what is sliced more must be gathered again.
        pairs = zip(self.start, self.goal, strict=True)
        return tuple(lcm(self.count_shards(old), self.count_shards(new)) for old, new in pairs)

    def count_shards(self, names: Sequence[str]) -> int:
        """Return the number of shards over these mesh axes."""
        return prod([self.axis_sizes[name] for name in names])

    def shard_bytes(self, assignment: Assignment) -> int:
        """Return the bytes of one device's shard."""
        n_elements = prod(self.shape) // prod(map(self.count_shards, assignment))
        return self.dtype.n_bytes(n_elements)

    def can_shard(self, assignment: Assignment, dim: int) -> bool:
        """Return whether a dimension is divisible by its number of shards, and that is of use."""
        n_shards = self.count_shards(assignment[dim])
        return n_shards <= self.max_counts[dim] and self.shape[dim] % n_shards == 0

    def missing_bytes(self, assignment: Assignment) -> int:
        """Return a lower bound for what all devices together must still receive."""
        overlap = 1
        for size, old, new in zip(self.shape, assignment, self.goal, strict=True):
            overlap *= size // max(self.count_shards(old), self.count_shards(new))
        n_overlapping = self.n_devices // _count_misplaced(assignment, self.goal, self.axis_sizes)
        missing = self.n_devices * self.shard_bytes(self.goal)
        return missing - n_overlapping * self.dtype.n_bytes(overlap)


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One collective of a path, and the assignment it leads to."""

    kind: str
    mesh_axes: tuple[str, ...]
    after: Assignment
    sent_bytes: int = 0
    n_senders: int = 0  # devices that send `sent_bytes`; the others send nothing
    dim: int | None = None
    to_dim: int | None = None


def find_cheapest_path(problem: ReshardProblem) -> list[Edge]:
    """Return the path from start to goal on which all devices together send the fewest bytes.

    Ties go to fewer bytes per device, then to fewer steps. If the search takes too long, a greedy
    one follows, and after that the path that gathers what differs, then slices.
    """
    for bound_weight in (1, 8):
        path = _search(problem, bound_weight)
        if path is not None:
            return path
    return list(_gather_then_slice(problem))


def _search(problem: ReshardProblem, bound_weight: int) -> list[Edge] | None:
    """Return the cheapest path, or None after too many expansions; a weight above 1 is greedy."""
    order = count()  # breaks ties, so that heapq never compares edges
    # Entries: bound, bytes per device, number of steps, tie breaker, bytes sent, node, path.
    queue: list[tuple[int, int, int, int, int, Assignment, list[Edge]]]
    queue = [(0, 0, 0, next(order), 0, problem.start, [])]
    best = {problem.start: (0, 0, 0)}
    n_expansions = 0
    while queue and n_expansions < _MAX_EXPANSIONS:
        _, per_device, n_steps, _, total, assignment, path = heapq.heappop(queue)
        if assignment == problem.goal:
            return path
        if best[assignment] < (total, per_device, n_steps):  # a cheaper path was pushed later
            continue
        n_expansions += 1
        for edge in _edges(problem, assignment, path):
            sent = total + edge.sent_bytes * edge.n_senders
            cost = (sent, per_device + edge.sent_bytes, n_steps + 1)
            if edge.after not in best or cost < best[edge.after]:
                best[edge.after] = cost
                bound = sent + bound_weight * problem.missing_bytes(edge.after)
                entry = (bound, *cost[1:], next(order), sent, edge.after, [*path, edge])
                heapq.heappush(queue, entry)
    return None


def _edges(problem: ReshardProblem, assignment: Assignment, path: Sequence[Edge]) -> Iterator[Edge]:
    # This order decides between paths of equal bytes and length. Two permutes in a row are one.
    if not path or path[-1].kind != "collective_permute":
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
            if name not in used and problem.can_shard(after, dim):
                yield Edge(kind="slice", mesh_axes=(name,), after=after, dim=dim)


def _all_gather_edges(problem: ReshardProblem, assignment: Assignment) -> Iterator[Edge]:
    for dim, tail in _minor_axes(problem, assignment):
        yield _all_gather(problem, assignment, dim, tail)


def _all_gather(
    problem: ReshardProblem, assignment: Assignment, dim: int, tail: tuple[str, ...]
) -> Edge:
    # On a ring every device forwards all shards but one: (g-1)/g of the gathered array.
    sent = problem.shard_bytes(assignment) * (problem.count_shards(tail) - 1)
    return Edge(
        kind="all_gather",
        mesh_axes=tail,
        after=_replace_dims(assignment, {dim: assignment[dim][: -len(tail)]}),
        sent_bytes=sent,
        n_senders=problem.n_devices,
        dim=dim,
    )


def _all_to_all_edges(problem: ReshardProblem, assignment: Assignment) -> Iterator[Edge]:
    local = problem.shard_bytes(assignment)
    for dim, tail in _minor_axes(problem, assignment):
        group_size = problem.count_shards(tail)
        sent = -(-local * (group_size - 1) // group_size)  # rounded up, for packed int4
        for to_dim in range(len(assignment)):
            changes = {dim: assignment[dim][: -len(tail)], to_dim: (*assignment[to_dim], *tail)}
            after = _replace_dims(assignment, changes)
            if to_dim != dim and problem.can_shard(after, to_dim):
                yield Edge(
                    kind="all_to_all",
                    mesh_axes=tail,
                    after=after,
                    sent_bytes=sent,
                    n_senders=problem.n_devices,
                    dim=dim,
                    to_dim=to_dim,
                )


def _permute_edges(problem: ReshardProblem, assignment: Assignment) -> Iterator[Edge]:
    """Yield assignments with shards of the same shape: devices only exchange full shards.

    Mesh axes of the goal go to their places, as far as the shard counts allow; only the other mesh
    axes are tried in every order.
    """
    heads, counts = [], []
    for names, goal, n_fixed in zip(assignment, problem.goal, problem.n_fixed_axes, strict=True):
        n_shards, stop = problem.count_shards(names[n_fixed:]), n_fixed
        while stop < len(goal) and n_shards % problem.axis_sizes[goal[stop]] == 0:
            n_shards //= problem.axis_sizes[goal[stop]]
            stop += 1
        heads.append(goal[:stop])
        counts.append(n_shards)
    placed = {name for names in heads for name in names}
    free = tuple(name for name in problem.moving_axes if name not in placed)
    for tails in _assignments_with_counts(problem, counts, free):
        after = tuple(head + tail for head, tail in zip(heads, tails, strict=True))
        if after != assignment:
            yield _permute(problem, assignment, after)


def _permute(problem: ReshardProblem, before: Assignment, after: Assignment) -> Edge:
    changed = [
        _differing_axes(old, new, problem.axis_sizes)
        for old, new in zip(before, after, strict=True)
        if old != new
    ]
    # All senders and receivers differ only along these mesh axes.
    names = tuple(dict.fromkeys(name for pair in changed for names in pair for name in names))
    sizes = tuple((name, problem.axis_sizes[name]) for name in names)
    group_size = problem.count_shards(names)
    n_unmoved = _count_unmoved(tuple(changed), sizes)
    return Edge(
        kind="collective_permute",
        mesh_axes=names,
        after=after,
        sent_bytes=problem.shard_bytes(before),
        n_senders=(group_size - n_unmoved) * (problem.n_devices // group_size),
    )


def _differing_axes(
    old: tuple[str, ...], new: tuple[str, ...], sizes: dict[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return both sides of a dimension without the mesh axes that stay in their places."""
    if [sizes[name] for name in old] == [sizes[name] for name in new]:
        pairs = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
        return tuple(first for first, _ in pairs), tuple(second for _, second in pairs)
    n_common = _common_prefix_length(old, new)
    return old[n_common:], new[n_common:]


@lru_cache(maxsize=4096)
def _count_unmoved(
    changed: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...], sizes: tuple[tuple[str, int], ...]
) -> int:
    """Return how many devices of a group hold the same shard before and after a permute."""
    size_of = dict(sizes)
    group_size = prod(size_of.values())
    if all([size_of[a] for a in old] == [size_of[a] for a in new] for old, new in changed):
        before, after = zip(*changed, strict=True)
        return group_size // _count_misplaced(before, after, size_of)
    if group_size > _MAX_COMPARED_DEVICES:
        return 0  # too few of so many to matter
    n_unmoved = 0
    for position in product(*(range(size) for _, size in sizes)):
        steps = dict(zip(size_of, position, strict=True))
        n_unmoved += all(
            _shard_number(old, steps, size_of) == _shard_number(new, steps, size_of)
            for old, new in changed
        )
    return n_unmoved


def _shard_number(names: Sequence[str], steps: dict[str, int], sizes: dict[str, int]) -> int:
    number = 0
    for name in names:
        number = number * sizes[name] + steps[name]
    return number


def _count_misplaced(old: Assignment, new: Assignment, sizes: dict[str, int]) -> int:
    """Return n if one of n devices has the same coordinate along old and new axes.

    Two mesh axes at the same place of a dimension must have the same coordinate, and a third at
    the place of the second too: each pair that joins two sets of axes divides the devices.
    """
    representative: dict[str, str] = {}
    n = 1
    for old_names, new_names in zip(old, new, strict=True):
        for first, second in zip(old_names, new_names, strict=False):
            if sizes[first] != sizes[second]:
                break
            while first in representative:
                first = representative[first]
            while second in representative:
                second = representative[second]
            if first != second:
                representative[first] = second
                n *= sizes[first]
    return n


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
        quotient, remainder = divmod(n_shards, problem.axis_sizes[name])
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
        if tail := current[dim][n_fixed:]:
            edge = _all_gather(problem, current, dim, tail)
            current = edge.after
            yield edge
    for dim, names in enumerate(problem.goal):
        if tail := names[len(current[dim]) :]:
            current = _replace_dims(current, {dim: names})
            yield Edge(kind="slice", mesh_axes=tail, after=current, dim=dim)


def _common_prefix_length(old: tuple[str, ...], new: tuple[str, ...]) -> int:
    pairs = zip(old, new, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def _replace_dims(assignment: Assignment, changes: dict[int, tuple[str, ...]]) -> Assignment:
    return tuple(changes.get(dim, names) for dim, names in enumerate(assignment))
