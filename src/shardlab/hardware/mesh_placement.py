"""The placement of a mesh on a network: which torus axes, nodes or slices each mesh axis uses.

>>> from shardlab.hardware.chips import parse_hardware
>>> for placement in mesh_placements((("fsdp", 64), ("tensor", 8)), parse_hardware("tpu-v5p")):
...     print(placement.description)
fsdp 8x8, tensor 8

On a torus a mesh axis can use several torus axes, and then has the links of all of them: we assume
a slice shape chosen for the mesh, with sides no longer than the hardware's. If there are more mesh
axes than torus axes, some share a torus axis. A mesh axis too long for its torus axes is folded
along those of the others, which then have no ring of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import gcd, prod

from shardlab.hardware.chips import Hardware
from shardlab.hardware.switched import usable_domain
from shardlab.sharding.factors import divisors
from shardlab.sharding.mesh import MeshSizes


@dataclass(frozen=True, kw_only=True)
class CollectiveRoute:
    """The links of a collective, as an equivalent mesh: `axes` of it take part.

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
        # Cached: a search uses routes as dictionary keys hundreds of thousands of times.
        return hash((self.mesh, self.axes, self.group_size, self.dcn, self.sharing))


@dataclass(frozen=True)
class Block:
    """Mesh axes on the same torus axes: one mesh axis along `sides`, or several along one side."""

    axes: MeshSizes
    sides: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MeshPlacement:
    """Mesh axes on a network: blocks of a torus, or mesh order in a switched network."""

    mesh: MeshSizes
    blocks: tuple[Block, ...] = ()
    slices: Mapping[str, int] = field(default_factory=dict)  # mesh axis -> its size over DCN
    is_torus: bool = True
    domain: int = 1  # devices of a node, in a switched network
    longest: int | None = None  # the most chips along one torus axis, if it is known
    chip_axis: str | None = None  # the mesh axis along which the devices of a chip are
    in_chip: int = 1  # the devices of a chip
    _routes_by_axes: dict[tuple[str, ...], tuple[CollectiveRoute, ...]] = field(
        default_factory=dict, compare=False
    )

    def routes(self, axes: tuple[str, ...]) -> tuple[CollectiveRoute, ...]:
        """Return the routes of a collective over these mesh axes; several run in sequence."""
        if axes not in self._routes_by_axes:
            self._routes_by_axes[axes] = self._find_routes(axes)
        return self._routes_by_axes[axes]

    def _find_routes(self, axes: tuple[str, ...]) -> tuple[CollectiveRoute, ...]:
        if not self.is_torus:
            return (_switched_route(self.mesh, axes),)
        blocks = [block for block in self.blocks if any(name in axes for name, _ in block.axes)]
        alone = [block for block in blocks if len(block.axes) == 1]
        crossing = prod(self.slices.get(name, 1) for name in axes)
        if len(blocks) == 1 and crossing == 1 and self._shares_torus_axis(blocks[0]):
            # `CollectiveTimer` times a group that is only a part of its mesh axis as a line.
            size = blocks[0].axes[0][1]
            side = (("rest", self._n_devices // (2 * size)), ("side", 2 * size))
            return (CollectiveRoute(mesh=side, axes=("side",), group_size=size),)
        routes = []
        if alone or crossing > 1 or self.chip_axis in axes:
            sides = [side for block in alone for side in block.sides]
            in_chip = self.in_chip if self.chip_axis in axes else 1
            routes.append(self._route_along_sides(sides, crossing, in_chip))
        for block in blocks:
            if len(block.axes) > 1:
                routes += self._routes_in_shared_axis(block, axes)
        return tuple(routes)

    @cached_property
    def description(self) -> str:
        """The placement as text, such as `fsdp 8x8, tensor 8`."""
        if not self.is_torus:
            return ", ".join(self._node_texts())
        parts = []
        for block in self.blocks:
            names = "+".join(name for name, _ in block.axes)
            sizes = block.sides if len(block.axes) == 1 else [size for _, size in block.axes]
            shared = " on one torus axis" if len(block.axes) > 1 else ""
            if self._is_folded(block):
                shared += " (folded)"
            elif self._shares_torus_axis(block):
                shared += " (part of a side)"
            parts.append(f"{names} {'x'.join(map(str, sizes))}{shared}")
        if self.chip_axis is not None:
            parts.append(f"{self.chip_axis} {self.in_chip} in a chip")
        parts += [f"{name} {size} over DCN" for name, size in self.slices.items()]
        return ", ".join(parts)

    def _node_texts(self) -> Iterator[str]:
        """Yield for each mesh axis, in order, whether its devices share a node."""
        inner = 1
        texts = []
        for name, size in reversed(self.mesh):
            n_in_node = max(1, min(size, self.domain // inner))
            inner *= size
            if n_in_node >= size:
                texts.append(f"{name} {size} in a node")
            elif n_in_node == 1:
                texts.append(f"{name} {size} between nodes")
            else:
                texts.append(f"{name} {size} across nodes, {n_in_node} in each")
        yield from reversed(texts)

    def _is_folded(self, block: Block) -> bool:
        return self.longest is not None and max(block.sides, default=1) > self.longest

    def _shares_torus_axis(self, block: Block) -> bool:
        """Return whether a folded mesh axis also uses this one's torus axis, so it has no ring."""
        if len(block.axes) > 1 or len(block.sides) != 1 or self._is_folded(block):
            return False
        is_even = self._slice_size % (2 * block.sides[0]) == 0
        return is_even and any(map(self._is_folded, self.blocks))

    @cached_property
    def _slice_size(self) -> int:
        """The chips of a slice."""
        return prod(size for block in self.blocks for _, size in block.axes)

    @cached_property
    def _n_devices(self) -> int:
        """The devices of a slice."""
        return self._slice_size * self.in_chip

    def _route_along_sides(
        self, sides: Sequence[int], crossing: int, in_chip: int
    ) -> CollectiveRoute:
        side_axes = [(f"side{index}", side) for index, side in enumerate(sides)]
        dcn = [("dcn", crossing)] if crossing > 1 else []
        rest = ("rest", self._slice_size // prod(sides))
        # The innermost mesh axis has the devices of a chip, for `CollectiveTimer` as for JAX.
        chip = [("chip", self.in_chip)] if self.in_chip > 1 else []
        names = [name for name, _ in (*dcn, *side_axes)] + (["chip"] if in_chip > 1 else [])
        return CollectiveRoute(
            mesh=(*dcn, rest, *side_axes, *chip),
            axes=tuple(names),
            group_size=crossing * prod(sides) * in_chip,
            dcn=tuple(dict(dcn)),
        )

    def _routes_in_shared_axis(
        self, block: Block, axes: Sequence[str]
    ) -> Iterator[CollectiveRoute]:
        """Yield routes along a part of a torus axis: no rings, and outer groups share the links."""
        side = prod(size for _, size in block.axes)
        mesh = (("rest", self._n_devices // side), ("side", side))
        inner = side
        for name, size in block.axes:
            inner //= size
            if name in axes:
                yield CollectiveRoute(
                    mesh=mesh, axes=("side",), group_size=size, dcn=(), sharing=inner
                )


def mesh_placements(mesh: MeshSizes, hardware: Hardware) -> tuple[MeshPlacement, ...]:
    """Return all placements of a mesh on a network; the caller takes the fastest.

    Beyond one pod the outermost mesh axes use the data-center network.
    """
    if hardware.network == "switch":
        domain = usable_domain(hardware.domain, prod(size for _, size in mesh))
        return (MeshPlacement(mesh=mesh, is_torus=False, domain=domain),)
    slices, inside = {}, []
    # Outermost axes first: the slices are divided out of them as far as their sizes allow.
    remaining = n_slices(prod(size for _, size in mesh), hardware)
    for name, size in mesh:
        n_over_dcn = gcd(size, remaining)
        remaining //= n_over_dcn
        if n_over_dcn > 1:
            slices[name] = n_over_dcn
        if size > n_over_dcn:
            inside.append((name, size // n_over_dcn))
    chip_axis, in_chip, chips = _split_off_chip(inside, hardware)
    arrangements = list(_block_arrangements(chips, hardware.torus_axes))
    if hardware.longest_side is not None:
        # An axis that is too long in each arrangement is folded: keep those that fold least.
        max_side = max(hardware.longest_side, min(map(_longest_side, arrangements)))
        arrangements = [blocks for blocks in arrangements if _longest_side(blocks) <= max_side]
    return tuple(
        MeshPlacement(
            mesh=mesh,
            blocks=blocks,
            slices=slices,
            longest=hardware.longest_side,
            chip_axis=chip_axis,
            in_chip=in_chip,
        )
        for blocks in arrangements
    )


def _split_off_chip(
    axes: Sequence[tuple[str, int]], hardware: Hardware
) -> tuple[str | None, int, list[tuple[str, int]]]:
    """Return the innermost mesh axis that the devices of a chip divide, and the mesh of chips."""
    n_in_chip = hardware.devices_per_chip
    chips = list(axes)
    if n_in_chip > 1 and "die_bandwidth" in hardware.figures:
        for index, (name, size) in reversed(list(enumerate(axes))):
            if size % n_in_chip == 0:
                chips[index : index + 1] = [(name, size // n_in_chip)] if size > n_in_chip else []
                return name, n_in_chip, chips
    return None, 1, chips


def n_slices(n_devices: int, hardware: Hardware) -> int:
    """Return the smallest number of equal slices that each fit into a pod.

    >>> from shardlab.hardware.chips import parse_hardware
    >>> n_slices(4096, parse_hardware("tpu-v5e")), n_slices(4096, parse_hardware("tpu-v5p"))
    (16, 1)
    """
    if hardware.pod is None:
        return 1
    max_devices = hardware.pod * hardware.devices_per_chip
    min_slices = -(-n_devices // max_devices)
    return next(count for count in divisors(n_devices) if count >= min_slices)


def even_sides(size: int, n_sides: int) -> tuple[int, ...]:
    """Return a size as a product of sides that are as equal as possible, shorter sides first.

    >>> even_sides(512, 3), even_sides(32, 2), even_sides(7, 2)
    ((8, 8, 8), (4, 8), (1, 7))
    """
    if n_sides == 1:
        return (size,)
    # 1e-9: the cube root of 512 is 7.999... in floating point.
    side = next(
        divisor
        for divisor in range(int(size ** (1 / n_sides) + 1e-9), 0, -1)
        if size % divisor == 0
    )
    return (side, *even_sides(size // side, n_sides - 1))


def _block_arrangements(
    axes: Sequence[tuple[str, int]], torus_axes: int
) -> Iterator[tuple[Block, ...]]:
    if len(axes) > torus_axes:
        for groups in _axis_groupings(tuple(axes), torus_axes):
            yield tuple(Block(group, (prod(size for _, size in group),)) for group in groups)
        return
    if not axes:
        yield ()
        return
    # Splitting the row of torus axes at `len(axes) - 1` points gives each mesh axis at least one.
    for splits in combinations(range(1, torus_axes), len(axes) - 1):
        edges = (0, *splits, torus_axes)
        yield tuple(
            Block((axis,), tuple(side for side in even_sides(axis[1], stop - start) if side > 1))
            for axis, start, stop in zip(axes, edges, edges[1:], strict=False)
        )


def _axis_groupings(axes: MeshSizes, n_groups: int) -> Iterator[tuple[MeshSizes, ...]]:
    """Yield all partitions of the axes into `n_groups` nonempty groups."""
    if n_groups == 1:
        yield (axes,)
        return
    if len(axes) == n_groups:
        yield tuple((axis,) for axis in axes)
        return
    first, rest = axes[0], axes[1:]
    for groups in _axis_groupings(rest, n_groups - 1):
        yield ((first,), *groups)
    for groups in _axis_groupings(rest, n_groups):
        for index, group in enumerate(groups):
            yield (*groups[:index], (first, *group), *groups[index + 1 :])


def _longest_side(blocks: Sequence[Block]) -> int:
    return max((side for block in blocks for side in block.sides), default=1)


def _switched_route(mesh: MeshSizes, axes: Sequence[str]) -> CollectiveRoute:
    """Return the route in a switched network, with adjacent mesh axes merged into one.

    Merging does not change which devices share a node, and many meshes then share a cached time.
    """
    positions = [
        position for position, (name, size) in enumerate(mesh) if name in axes and size > 1
    ]
    group = prod(mesh[position][1] for position in positions)
    participating = set(positions)
    if positions and all(
        mesh[position][1] == 1 or position in participating
        for position in range(positions[0], positions[-1])
    ):
        outer = prod(size for _, size in mesh[: positions[0]])
        inner = prod(size for _, size in mesh[positions[-1] + 1 :])
        return CollectiveRoute(
            mesh=(("outer", outer), ("group", group), ("inner", inner)),
            axes=("group",),
            group_size=group,
        )
    return CollectiveRoute(
        mesh=mesh, axes=tuple(mesh[position][0] for position in positions), group_size=group
    )
