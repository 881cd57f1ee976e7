"""A mesh laid on a network: which torus axes, nodes or slices each mesh axis goes along.

>>> from shardlab.hardware.chips import parse_hardware
>>> for each in mesh_placements((("fsdp", 64), ("tensor", 8)), parse_hardware("tpu-v5p")):
...     print(each.words)
fsdp 8x8, tensor 8

On a torus a mesh axis may go along several torus axes at once, and has the links of all of them:
the slice is taken to be arranged for the mesh, its sides no longer than the hardware's. Where there
are more mesh axes than torus axes, some go along the same one. A mesh axis too long for its torus
axes is folded along those of the others, which then have no ring of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import gcd, prod

from shardlab.hardware.chips import Hardware
from shardlab.sharding.factors import divisors
from shardlab.sharding.mesh import MeshSizes


@dataclass(frozen=True, kw_only=True)
class CollectiveRoute:
    """The devices of an exchange as the clock sees them: a mesh, and the axes that take part.

    `sharing` groups use the same links at the same time.
    """

    mesh: MeshSizes
    axes: tuple[str, ...]
    group_size: int
    dcn: tuple[str, ...] = ()
    sharing: int = 1

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Counted once: a search looks times up by it hundreds of thousands of times."""
        return hash((self.mesh, self.axes, self.group_size, self.dcn, self.sharing))


@dataclass(frozen=True)
class Block:
    """Mesh axes along the same torus axes: one of them along `sides`, or several along one."""

    axes: MeshSizes
    sides: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MeshPlacement:
    """Mesh axes on a network: blocks of a torus, or nothing but mesh order behind switches."""

    mesh: MeshSizes
    blocks: tuple[Block, ...] = ()
    slices: Mapping[str, int] = field(default_factory=dict)  # mesh axis -> its part over DCN
    is_torus: bool = True
    domain: int = 1  # devices of a node, behind switches
    longest: int | None = None  # the most devices along one torus axis, where it is known
    _known: dict[tuple[str, ...], tuple[CollectiveRoute, ...]] = field(
        default_factory=dict, compare=False
    )

    def ways(self, axes: tuple[str, ...]) -> tuple[CollectiveRoute, ...]:
        """Return the ways of an exchange over these mesh axes; several follow one another."""
        if axes not in self._known:
            self._known[axes] = self._ways(axes)
        return self._known[axes]

    def _ways(self, axes: tuple[str, ...]) -> tuple[CollectiveRoute, ...]:
        if not self.is_torus:
            return (_switched(self.mesh, axes),)
        blocks = [block for block in self.blocks if any(name in axes for name, _ in block.axes)]
        alone = [block for block in blocks if len(block.axes) == 1]
        crossing = prod(self.slices.get(name, 1) for name in axes)
        ways = []
        if len(blocks) == 1 and crossing == 1 and self._is_part(blocks[0]):
            size = blocks[0].axes[0][1]
            side = (("rest", self._slice_size // (2 * size)), ("side", 2 * size))
            return (CollectiveRoute(mesh=side, axes=("side",), group_size=size),)
        if alone or crossing > 1:
            ways.append(self._along([side for block in alone for side in block.sides], crossing))
        for block in blocks:
            if len(block.axes) > 1:
                ways += self._within(block, axes)
        return tuple(ways)

    @cached_property
    def words(self) -> str:
        """Say what lies where, such as `fsdp 8x8, tensor 8`."""
        if not self.is_torus:
            return ", ".join(self._in_nodes())
        parts = []
        for block in self.blocks:
            names = "+".join(name for name, _ in block.axes)
            sizes = block.sides if len(block.axes) == 1 else [size for _, size in block.axes]
            shared = " on one torus axis" if len(block.axes) > 1 else ""
            if self._is_folded(block):
                shared += " (folded)"
            elif self._is_part(block):
                shared += " (part of a side)"
            parts.append(f"{names} {'x'.join(map(str, sizes))}{shared}")
        parts += [f"{name} {size} over DCN" for name, size in self.slices.items()]
        return ", ".join(parts)

    def _in_nodes(self) -> Iterator[str]:
        """Yield for each axis whether its devices share a node, in mesh order."""
        inner = 1
        said = []
        for name, size in reversed(self.mesh):
            together = max(1, min(size, self.domain // inner))
            inner *= size
            if together >= size:
                said.append(f"{name} {size} in a node")
            elif together == 1:
                said.append(f"{name} {size} between nodes")
            else:
                said.append(f"{name} {size} across nodes, {together} in each")
        yield from reversed(said)

    def _is_folded(self, block: Block) -> bool:
        return self.longest is not None and max(block.sides, default=1) > self.longest

    def _is_part(self, block: Block) -> bool:
        """Return whether a mesh axis has no torus axis of its own, so that it closes to no ring.

        Where another is too long for its torus axes, it goes on along those of the others.
        """
        if len(block.axes) > 1 or len(block.sides) != 1 or self._is_folded(block):
            return False
        even = self._slice_size % (2 * block.sides[0]) == 0
        return even and any(map(self._is_folded, self.blocks))

    @cached_property
    def _slice_size(self) -> int:
        return prod(size for block in self.blocks for _, size in block.axes)

    def _along(self, sides: Sequence[int], crossing: int) -> CollectiveRoute:
        pieces = [(f"side{at}", side) for at, side in enumerate(sides)]
        dcn = [("dcn", crossing)] if crossing > 1 else []
        rest = ("rest", self._slice_size // prod(sides))
        names = tuple(name for name, _ in (*dcn, *pieces))
        return CollectiveRoute(
            mesh=(*dcn, rest, *pieces),
            axes=names,
            group_size=crossing * prod(sides),
            dcn=tuple(dict(dcn)),
        )

    def _within(self, block: Block, axes: Sequence[str]) -> Iterator[CollectiveRoute]:
        """Yield parts of one torus axis: they close to no ring, and outer ones share its links."""
        whole = prod(size for _, size in block.axes)
        mesh = (("rest", self._slice_size // whole), ("side", whole))
        inner = whole
        for name, size in block.axes:
            inner //= size
            if name in axes:
                yield CollectiveRoute(
                    mesh=mesh, axes=("side",), group_size=size, dcn=(), sharing=inner
                )


def mesh_placements(mesh: MeshSizes, hardware: Hardware) -> tuple[MeshPlacement, ...]:
    """Return the ways to lay a mesh on a network, of which the quickest is to be taken.

    Beyond one pod the outermost mesh axes go over the data-centre network.
    """
    if hardware.network == "switch":
        return (MeshPlacement(mesh=mesh, is_torus=False, domain=hardware.domain),)
    slices, inside = {}, []
    left = n_slices(prod(size for _, size in mesh), hardware)
    for name, size in mesh:
        part = gcd(size, left)
        left //= part
        if part > 1:
            slices[name] = part
        if size > part:
            inside.append((name, size // part))
    found, longest = list(_blocks(inside, hardware.torus_axes)), None
    if hardware.longest_side is not None:
        # An axis too long for every arrangement is folded through torus axes: the least of that.
        longest = hardware.longest_side * hardware.devices_per_chip
        most = max(longest, min(map(_longest, found)))
        found = [each for each in found if _longest(each) <= most]
    return tuple(
        MeshPlacement(mesh=mesh, blocks=each, slices=slices, longest=longest) for each in found
    )


def n_slices(n_devices: int, hardware: Hardware) -> int:
    """Return the least number of equal slices that each fit into a pod.

    >>> from shardlab.hardware.chips import parse_hardware
    >>> n_slices(4096, parse_hardware("tpu-v5e")), n_slices(4096, parse_hardware("tpu-v5p"))
    (16, 1)
    """
    if hardware.pod is None:
        return 1
    most = hardware.pod * hardware.devices_per_chip
    least = -(-n_devices // most)
    return next(each for each in divisors(n_devices) if each >= least)


def even_sides(size: int, n_sides: int) -> tuple[int, ...]:
    """Return a size as a product of sides as even as can be, the shorter first.

    >>> even_sides(512, 3), even_sides(32, 2), even_sides(7, 2)
    ((8, 8, 8), (4, 8), (1, 7))
    """
    if n_sides == 1:
        return (size,)
    side = next(
        each for each in range(int(size ** (1 / n_sides) + 1e-9), 0, -1) if size % each == 0
    )
    return (side, *even_sides(size // side, n_sides - 1))


def _blocks(axes: Sequence[tuple[str, int]], torus_axes: int) -> Iterator[tuple[Block, ...]]:
    if len(axes) > torus_axes:
        for groups in _groupings(tuple(axes), torus_axes):
            yield tuple(Block(each, (prod(size for _, size in each),)) for each in groups)
        return
    if not axes:
        yield ()
        return
    # cuts between `torus_axes` things in a row give each mesh axis one or more of them
    for cuts in combinations(range(1, torus_axes), len(axes) - 1):
        edges = (0, *cuts, torus_axes)
        yield tuple(
            Block((axis,), tuple(side for side in even_sides(axis[1], stop - start) if side > 1))
            for axis, start, stop in zip(axes, edges, edges[1:], strict=False)
        )


def _groupings(axes: MeshSizes, n_groups: int) -> Iterator[tuple[MeshSizes, ...]]:
    """Yield the ways to put axes into so many groups, none empty."""
    if n_groups == 1:
        yield (axes,)
        return
    if len(axes) == n_groups:
        yield tuple((axis,) for axis in axes)
        return
    first, rest = axes[0], axes[1:]
    for groups in _groupings(rest, n_groups - 1):
        yield ((first,), *groups)
    for groups in _groupings(rest, n_groups):
        for at, group in enumerate(groups):
            yield (*groups[:at], (first, *group), *groups[at + 1 :])


def _longest(blocks: Sequence[Block]) -> int:
    return max((side for block in blocks for side in block.sides), default=1)


def _switched(mesh: MeshSizes, axes: Sequence[str]) -> CollectiveRoute:
    """Return the mesh with axes that stand together as one: how groups lie is the same."""
    places = [at for at, (name, size) in enumerate(mesh) if name in axes and size > 1]
    group = prod(mesh[at][1] for at in places)
    taking = set(places)
    if places and all(mesh[at][1] == 1 or at in taking for at in range(places[0], places[-1])):
        outer = prod(size for _, size in mesh[: places[0]])
        inner = prod(size for _, size in mesh[places[-1] + 1 :])
        return CollectiveRoute(
            mesh=(("outer", outer), ("group", group), ("inner", inner)),
            axes=("group",),
            group_size=group,
        )
    return CollectiveRoute(mesh=mesh, axes=tuple(mesh[at][0] for at in places), group_size=group)
